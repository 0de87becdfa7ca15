! Forms of Fortran I/O that libgfortran treats in its own way each, in the
! directory given as the argument.
program forms
  use, intrinsic :: iso_fortran_env, only: int64, iostat_end, output_unit
  implicit none
  integer, parameter :: n = 100000
  character(len=256) :: dir, text, name
  real(8) :: a(n), b(n), x, y
  real(8), asynchronous :: c(n), d(n)
  integer :: i, k, ios, unit, id(8)
  integer(int64) :: bytes
  logical :: there, open, pending
  namelist /numbers/ i, x

  call get_command_argument(1, dir)
  a = [(1.0d0/i, i=1, n)]

  call step('unformatted')
  open (newunit=unit, file=trim(dir)//'/unformatted', form='unformatted', action='write')
  do i = 1, 10
    write (unit) i, a(1:i*1000)
  end do
  close (unit)
  open (newunit=unit, file=trim(dir)//'/unformatted', form='unformatted', action='read', status='old')
  do i = 1, 10
    read (unit) k, b(1:i*1000)
    if (k /= i .or. any(a(1:i*1000) /= b(1:i*1000))) print *, 'record', i, 'differs'
  end do
  read (unit, iostat=ios) k
  print *, ios == iostat_end
  backspace (unit)
  backspace (unit)
  read (unit) k
  print *, k
  close (unit)
  open (newunit=unit, file=trim(dir)//'/swapped', form='unformatted', convert='big_endian')
  write (unit) a(1:100)
  rewind (unit)
  read (unit) b(1:100)
  print *, all(a(1:100) == b(1:100))
  close (unit)

  call step('formatted')
  open (newunit=unit, file=trim(dir)//'/formatted', form='formatted', action='readwrite')
  write (unit, '(5es24.16)') a(1:1000)
  write (unit, '(a,/,i8,1x,l1,1x,z8.8)') 'text', 42, .true., 255
  write (unit, *) (1.0, 2.0), 'list', 3
  write (unit, '(a)', advance='no') 'no '
  write (unit, '(a)') 'advance'
  rewind (unit)
  read (unit, '(5es24.16)') b(1:1000)
  print *, all(a(1:1000) == b(1:1000))
  read (unit, '(a)') text
  read (unit, '(i8,1x,l1)') k, there
  print *, trim(text), k, there
  read (unit, '(a)') text
  read (unit, '(a2)', advance='no', size=k) text(1:2)
  read (unit, '(a)') text(3:)
  print *, trim(text), k
  close (unit)
  i = 7
  x = 0.5d0
  open (newunit=unit, file=trim(dir)//'/namelist', delim='quote')
  write (unit, nml=numbers)
  rewind (unit)
  i = 0
  x = 0
  read (unit, nml=numbers)
  print *, i, x
  close (unit, status='keep')

  call step('stream')
  open (newunit=unit, file=trim(dir)//'/stream', access='stream', form='unformatted')
  write (unit) a
  write (unit, pos=8*500 + 1) -1.0d0
  inquire (unit, pos=bytes)
  print *, bytes
  read (unit, pos=8*499 + 1) x, y
  print *, x == a(500), y
  flush (unit)
  inquire (file=trim(dir)//'/stream', size=bytes)
  print *, bytes
  close (unit)
  open (newunit=unit, file=trim(dir)//'/lines', access='stream', form='formatted')
  write (unit, '(a)') 'first', 'second', 'third'
  read (unit, '(a)', pos=7) text
  print *, trim(text)
  close (unit)

  call step('direct')
  open (newunit=unit, file=trim(dir)//'/direct', access='direct', form='unformatted', recl=8000)
  do i = 10, 1, -1
    write (unit, rec=i) a(i:i + 999)
  end do
  read (unit, rec=7) b(1:1000)
  print *, all(b(1:1000) == a(7:1006))
  read (unit, rec=11, iostat=ios) b(1:1000)
  print *, ios /= 0
  inquire (unit, nextrec=k, recl=i)
  print *, k, i
  close (unit)
  open (newunit=unit, file=trim(dir)//'/cards', access='direct', form='formatted', recl=20)
  write (unit, '(a20)', rec=3) 'third card'
  write (unit, '(a20)', rec=1) 'first card'
  read (unit, '(a20)', rec=3) text
  print *, trim(adjustl(text))
  close (unit)

  call step('asynchronous')
  open (newunit=unit, file=trim(dir)//'/asynchronous', form='unformatted', asynchronous='yes', access='stream')
  c = a
  do i = 1, 8
    write (unit, asynchronous='yes', id=id(i), pos=int(8, int64)*n*(i - 1) + 1) c
  end do
  do i = 1, 8
    wait (unit, id=id(i))
  end do
  inquire (unit, pending=pending, asynchronous=text)
  if (pending) wait (unit) ! the thread that wrote may not have rested yet
  print *, trim(text)
  read (unit, asynchronous='yes', pos=8*n*5 + 1) d
  wait (unit)
  print *, all(c == d)
  close (unit)
  open (newunit=unit, file=trim(dir)//'/records', form='unformatted', asynchronous='yes')
  do i = 1, 5
    write (unit, asynchronous='yes') c(1:i)
  end do
  wait (unit)
  rewind (unit)
  do i = 1, 4
    read (unit, asynchronous='yes') d(1:i)
  end do
  wait (unit)
  print *, all(c(1:4) == d(1:4))
  close (unit)

  call step('inquire')
  open (newunit=unit, file=trim(dir)//'/stream', status='old', position='append', action='readwrite', &
        access='stream')
  inquire (unit, exist=there, opened=open, name=name, size=bytes, action=text)
  print *, there, open, name == trim(dir)//'/stream', bytes, trim(text)
  inquire (file=trim(dir)//'/stream', opened=open, number=k)
  print *, open, k == unit
  inquire (file=trim(dir)//'/none', exist=there, opened=open, size=bytes)
  print *, there, open, bytes
  inquire (file=trim(dir), exist=there)
  print *, there
  inquire (unit, read=text)
  print *, trim(text)
  write (unit) 1.0d0
  close (unit)
  inquire (file=trim(dir)//'/stream', size=bytes)
  print *, bytes

  call step('ends and errors')
  open (newunit=unit, file=trim(dir)//'/none', status='old', iostat=ios, iomsg=text)
  print *, ios, index(text, 'No such file') > 0
  open (newunit=unit, file=trim(dir)//'/stream', status='new', iostat=ios)
  print *, ios /= 0
  open (newunit=unit, file=trim(dir)//'/none/file', iostat=ios)
  print *, ios /= 0
  open (newunit=unit, file=trim(dir), action='write', iostat=ios)
  print *, ios /= 0
  open (newunit=unit, file=trim(dir)//'/cut', action='readwrite')
  write (unit, '(i0)') (i, i=1, 100)
  rewind (unit)
  read (unit, *) i, k
  endfile (unit)
  close (unit)
  inquire (file=trim(dir)//'/cut', size=bytes)
  print *, bytes
  open (newunit=unit, file=trim(dir)//'/gone')
  close (unit, status='delete')
  inquire (file=trim(dir)//'/gone', exist=there)
  print *, there
  open (newunit=unit, status='scratch', form='unformatted')
  write (unit) a
  rewind (unit)
  read (unit) b
  print *, all(a == b)
  close (unit)
  call rename(trim(dir)//'/cut', trim(dir)//'/renamed')
  inquire (file=trim(dir)//'/renamed', exist=there)
  print *, there
  flush (output_unit)

contains

  subroutine step(what)
    character(len=*), intent(in) :: what
    print *, '-- ', what
  end subroutine
end program forms
