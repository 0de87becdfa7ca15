! hole.c's first case in Fortran, with the module mpi or, if F08 is defined, mpi_f08. Prints how many bytes are wrong.
program hole
#ifdef F08
  use mpi_f08
#else
  use mpi
#endif
  implicit none
  integer, parameter :: rows = 64, width = 64
#ifdef F08
  type(MPI_File) :: f
  type(MPI_Datatype) :: column
  type(MPI_Status) :: status
  character(len=*), parameter :: name = '/hole08'
#else
  integer :: f, column, status(MPI_STATUS_SIZE)
  character(len=*), parameter :: name = '/hole90'
#endif
  integer :: rank, ranks, i, k, wrong, ierr
  integer(kind=MPI_OFFSET_KIND) :: at
  character(len=rows*width) :: own
  character(len=1), allocatable :: got(:)
  character(len=4096) :: path

  call MPI_Init(ierr)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierr)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierr)
  call get_command_argument(1, path)
  call MPI_Type_vector(rows, width, 2*ranks*width, MPI_CHARACTER, column, ierr)
  call MPI_Type_commit(column, ierr)
  call MPI_File_open(MPI_COMM_WORLD, trim(path)//name, ior(MPI_MODE_CREATE, MPI_MODE_RDWR), MPI_INFO_NULL, f, ierr)
  if (ierr /= MPI_SUCCESS) error stop 'MPI_File_open'
  own = repeat(achar(iachar('a') + rank), rows*width)
  do k = 0, rows - 1
    at = int(width, MPI_OFFSET_KIND) * (2*ranks*k + rank)
    call MPI_File_write_at(f, at, own, width, MPI_CHARACTER, status, ierr)
    if (ierr /= MPI_SUCCESS) error stop 'MPI_File_write_at'
  end do
  own = repeat(achar(iachar('A') + rank), rows*width)
  at = int(width, MPI_OFFSET_KIND) * (ranks + rank)
  call MPI_File_set_view(f, at, MPI_CHARACTER, column, 'native', MPI_INFO_NULL, ierr)
  at = 0
  call MPI_File_write_at_all(f, at, own, rows*width, MPI_CHARACTER, status, ierr)
  if (ierr /= MPI_SUCCESS) error stop 'MPI_File_write_at_all'
  call MPI_File_close(f, ierr)
  call MPI_File_open(MPI_COMM_WORLD, trim(path)//name, MPI_MODE_RDONLY, MPI_INFO_NULL, f, ierr)
  allocate(got(2*ranks*rows*width))
  call MPI_File_read_at(f, at, got, size(got), MPI_CHARACTER, status, ierr)
  wrong = 0
  do i = 0, size(got) - 1
    k = mod(i / width, 2*ranks)
    if (got(i + 1) /= achar(merge(iachar('a') + k, iachar('A') + k - ranks, k < ranks))) wrong = wrong + 1
  end do
  if (rank == 0) print '(i0, a)', wrong, ' bytes are wrong'
  call MPI_File_close(f, ierr)
  call MPI_Finalize(ierr)
end program hole
