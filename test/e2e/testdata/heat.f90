! The same as heat.c, through Fortran's own files and the f08 binding of MPI:
! heat DIR FROM EVERY STEPS.
program heat
  use mpi_f08
  use, intrinsic :: iso_fortran_env, only: int64, real64
  implicit none
  integer, parameter :: cells = 2**15
  real(real64) :: rod(0:cells + 1), next(0:cells + 1)
  integer :: rank, size, from, every, steps, step, i
  character(len=4096) :: dir

  call MPI_Init()
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, size)
  call get_command_argument(1, dir)
  from = argument(2)
  every = argument(3)
  steps = argument(4)

  rod = 0
  if (from > 0) then
    call load(from)
  else
    do i = 1, cells
      rod(i) = rank + mod(i, 17)
    end do
  end if
  do step = from + 1, steps
    call advance()
    if (mod(step, every) == 0) then
      call report(step)
      call save(step)
    end if
  end do
  call MPI_Finalize()

contains

  integer function argument(n)
    integer, intent(in) :: n
    character(len=32) :: text
    call get_command_argument(n, text)
    read (text, *) argument
  end function argument

  function path(step)
    integer, intent(in) :: step
    character(len=:), allocatable :: path
    character(len=64) :: name
    write (name, '("heat.", i0, ".", i0)') step, rank
    path = trim(dir)//'/'//trim(name)
  end function path

  subroutine save(step)
    integer, intent(in) :: step
    integer :: unit
    open (newunit=unit, file=path(step), access='stream', form='unformatted', status='replace', action='write')
    write (unit) rod
    close (unit)
  end subroutine save

  subroutine load(step)
    integer, intent(in) :: step
    integer :: unit
    open (newunit=unit, file=path(step), access='stream', form='unformatted', status='old', action='read')
    read (unit) rod
    close (unit)
  end subroutine load

  subroutine advance()
    integer :: left, right
    left = mod(rank + size - 1, size)
    right = mod(rank + 1, size)
    call MPI_Sendrecv(rod(1), 1, MPI_DOUBLE_PRECISION, left, 0, rod(cells + 1), 1, MPI_DOUBLE_PRECISION, right, 0, &
                      MPI_COMM_WORLD, MPI_STATUS_IGNORE)
    call MPI_Sendrecv(rod(cells), 1, MPI_DOUBLE_PRECISION, right, 1, rod(0), 1, MPI_DOUBLE_PRECISION, left, 1, &
                      MPI_COMM_WORLD, MPI_STATUS_IGNORE)
    do i = 1, cells
      next(i) = rod(i) + 0.1_real64*(rod(i - 1) - 2*rod(i) + rod(i + 1))
    end do
    do i = 1, cells
      rod(i) = next(i)*(1 + 1e-9_real64*i)
    end do
  end subroutine advance

  subroutine report(step)
    integer, intent(in) :: step
    real(real64) :: own, all(size), total
    own = sum(rod(1:cells))
    call MPI_Gather(own, 1, MPI_DOUBLE_PRECISION, all, 1, MPI_DOUBLE_PRECISION, 0, MPI_COMM_WORLD)
    total = sum(all)
    if (rank == 0) then
      print '("step ", i0, " ", z16.16)', step, transfer(total, 0_int64)
      flush (6)
    end if
  end subroutine report

end program heat
