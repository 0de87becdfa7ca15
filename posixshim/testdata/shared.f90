! All ranks write, each in its place, what they take for one file: argument 1.
program shared
  use mpi
  implicit none
  character(len=512) :: name
  integer :: rank, back, f, ierror
  integer(kind=mpi_offset_kind) :: off

  call mpi_init(ierror)
  call mpi_comm_rank(mpi_comm_world, rank, ierror)
  call get_command_argument(1, name)
  call mpi_file_open(mpi_comm_world, name, ior(mpi_mode_create, mpi_mode_rdwr), mpi_info_null, f, ierror)
  if (ierror /= mpi_success) print *, 'open fails'
  off = 4 * rank
  back = -1
  call mpi_file_write_at_all(f, off, rank, 1, mpi_integer, mpi_status_ignore, ierror)
  call mpi_file_read_at(f, off, back, 1, mpi_integer, mpi_status_ignore, ierror)
  if (back /= rank) print *, 'rank', rank, 'reads', back
  call mpi_file_close(f, ierror)
  ! One rank makes a file for all; what nobody has made is not there.
  if (rank == 0) then
    open (10, file=trim(name)//'.made', status='replace')
    close (10)
  end if
  call mpi_barrier(mpi_comm_world, ierror)
  call mpi_file_open(mpi_comm_world, trim(name)//'.made', mpi_mode_wronly, mpi_info_null, f, ierror)
  if (ierror /= mpi_success) print *, 'rank', rank, 'cannot open what rank 0 has made'
  if (ierror == mpi_success) call mpi_file_close(f, ierror)
  call mpi_file_open(mpi_comm_world, trim(name)//'.missing', mpi_mode_wronly, mpi_info_null, f, ierror)
  if (ierror == mpi_success) print *, 'rank', rank, 'opens what is not there'
  call mpi_barrier(mpi_comm_world, ierror)
  if (rank == 0) print '(a)', 'ok'
  call mpi_finalize(ierror)
end program
