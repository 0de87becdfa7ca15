! Like shared.c: several ranks open one file, argument 1, collectively, which is refused. Then each rank opens its own file alone.
! With argument 2, "abort", rank 0 opens it later than the others, which abort at once.
program shared
  use mpi
  implicit none
  character(len=512) :: name
  integer :: rank, back, f, ierror, class
  integer(kind=mpi_offset_kind) :: off

  call mpi_init(ierror)
  call mpi_comm_rank(mpi_comm_world, rank, ierror)
  call get_command_argument(2, name)
  if (name == 'abort') then
    call get_command_argument(1, name)
    if (rank == 0) call sleep(2)
    call mpi_file_open(mpi_comm_world, name, ior(mpi_mode_create, mpi_mode_rdwr), mpi_info_null, f, ierror)
    if (ierror /= mpi_success) call mpi_abort(mpi_comm_world, 3, ierror)
  end if
  call get_command_argument(1, name)
  call mpi_file_open(mpi_comm_world, name, ior(mpi_mode_create, mpi_mode_rdwr), mpi_info_null, f, ierror)
  call mpi_error_class(ierror, class, back)
  if (class /= mpi_err_unsupported_operation .or. f /= mpi_file_null) print *, 'rank', rank, 'is told', ierror
  call mpi_file_open(mpi_comm_self, name, ior(mpi_mode_create, mpi_mode_rdwr), mpi_info_null, f, ierror)
  if (ierror /= mpi_success) print *, 'open fails'
  off = 0
  back = -1
  call mpi_file_write_at(f, off, rank, 1, mpi_integer, mpi_status_ignore, ierror)
  call mpi_file_read_at(f, off, back, 1, mpi_integer, mpi_status_ignore, ierror)
  if (back /= rank) print *, 'rank', rank, 'reads', back
  call mpi_file_close(f, ierror)
  call mpi_barrier(mpi_comm_world, ierror)
  if (rank == 0) print '(a)', 'ok'
  call mpi_finalize(ierror)
end program
