! Like ranks.c, in Fortran with mpif.h: each rank writes its own file below the given directory, and reads it back.
program ranks
  implicit none
  include 'mpif.h'
  character(len=256) :: dir
  integer :: ierr, rank, failed, all
  real(8) :: a(100000), b(100000)

  call MPI_Init(ierr)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierr)
  call get_command_argument(1, dir)
  a = rank + 0.5d0
  open (10, file=trim(dir)//'/fortran', form='unformatted', status='replace')
  write (10) a
  close (10)
  call MPI_Barrier(MPI_COMM_WORLD, ierr)
  open (10, file=trim(dir)//'/fortran', form='unformatted', status='old')
  read (10) b
  close (10)
  failed = 1
  if (maxval(abs(a - b)) == 0) failed = 0
  call MPI_Allreduce(failed, all, 1, MPI_INTEGER, MPI_MAX, MPI_COMM_WORLD, ierr)
  call MPI_Finalize(ierr)
  if (rank == 0 .and. all == 0) print '(a)', 'ok'
  if (all /= 0) stop 1
end program ranks
