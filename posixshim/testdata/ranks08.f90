! Like ranks.f90, with the module mpi_f08. Its calls leave out ierror.
program ranks08
  use mpi_f08
  implicit none
  character(len=256) :: dir
  integer :: rank, failed, all
  real(8) :: a(100000), b(100000)

  call MPI_Init()
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call get_command_argument(1, dir)
  a = rank + 0.25d0
  open (10, file=trim(dir)//'/fortran08', form='unformatted', status='replace')
  write (10) a
  close (10)
  call MPI_Barrier(MPI_COMM_WORLD)
  open (10, file=trim(dir)//'/fortran08', form='unformatted', status='old')
  read (10) b
  close (10)
  failed = 1
  if (maxval(abs(a - b)) == 0) failed = 0
  call MPI_Allreduce(failed, all, 1, MPI_INTEGER, MPI_MAX, MPI_COMM_WORLD)
  call MPI_Finalize()
  if (rank == 0 .and. all == 0) print '(a)', 'ok'
  if (all /= 0) stop 1
end program ranks08
