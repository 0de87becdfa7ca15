! Like shared.f90, with the module mpi_f08. Its calls leave out ierror.
program shared08
  use mpi_f08
  implicit none
  character(len=512) :: name
  integer :: rank, back
  integer(kind=mpi_offset_kind) :: off
  type(MPI_File) :: f

  call MPI_Init()
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call get_command_argument(1, name)
  call MPI_File_open(MPI_COMM_WORLD, name, ior(MPI_MODE_CREATE, MPI_MODE_RDWR), MPI_INFO_NULL, f)
  if (f /= MPI_FILE_NULL) print *, 'rank', rank, 'has a file'
  call MPI_File_open(MPI_COMM_SELF, name, ior(MPI_MODE_CREATE, MPI_MODE_RDWR), MPI_INFO_NULL, f)
  off = 0
  back = -1
  call MPI_File_write_at(f, off, rank, 1, MPI_INTEGER, MPI_STATUS_IGNORE)
  call MPI_File_read_at(f, off, back, 1, MPI_INTEGER, MPI_STATUS_IGNORE)
  if (back /= rank) print *, 'rank', rank, 'reads', back
  call MPI_File_close(f)
  call MPI_Barrier(MPI_COMM_WORLD)
  if (rank == 0) print '(a)', 'ok'
  call MPI_Finalize()
end program
