! Uses Fortran units in the directory given as the argument and prints the results, so that a run under the mount can be compared
! with a local one.
program units
  implicit none
  character(len=256) :: dir, line
  integer :: i, n, ios, size
  logical :: there
  real(8) :: a(10000), b(10000)

  call get_command_argument(1, dir)

  ! formatted
  open (10, file=trim(dir)//'/formatted', status='new', action='readwrite')
  do i = 1, 100
    write (10, '(a,i4)') 'line ', i
  end do
  rewind (10)
  do i = 1, 3
    read (10, '(a)') line
  end do
  print *, trim(line)
  backspace (10)
  read (10, '(a)') line
  print *, trim(line)
  inquire (10, size=size, nextrec=n)
  inquire (file=trim(dir)//'/formatted', exist=there)
  print *, there
  endfile (10)
  close (10)
  inquire (file=trim(dir)//'/formatted', size=size)
  print *, size

  ! append
  open (11, file=trim(dir)//'/formatted', position='append', status='old')
  write (11, '(a)') 'appended'
  close (11)
  n = 0
  open (11, file=trim(dir)//'/formatted', status='old')
  do
    read (11, '(a)', iostat=ios) line
    if (ios /= 0) exit
    n = n + 1
  end do
  close (11)
  print *, n, ios

  ! unformatted
  call random_number(a)
  open (12, file=trim(dir)//'/unformatted', form='unformatted')
  write (12) a(1:5000)
  write (12) a(5001:)
  rewind (12)
  read (12) b(1:5000)
  read (12) b(5001:)
  backspace (12)
  read (12) b(5001:)
  close (12)
  print *, all(a == b)

  ! direct access
  open (13, file=trim(dir)//'/direct', access='direct', recl=80)
  do i = 10, 1, -1
    write (13, rec=i) a(i:i + 9)
  end do
  read (13, rec=4) b(1:10)
  close (13)
  print *, all(a(4:13) == b(1:10))

  ! stream
  open (14, file=trim(dir)//'/stream', access='stream', form='unformatted')
  write (14) a
  write (14, pos=9) a(1)
  read (14, pos=1) b(1:3)
  inquire (14, pos=i, size=size)
  close (14)
  print *, b(2) == a(1), b(3) == a(3), i, size

  ! errors
  open (15, file=trim(dir)//'/nope', status='old', iostat=ios)
  print *, ios
  open (15, file=trim(dir)//'/formatted', status='new', iostat=ios)
  print *, ios /= 0
  open (15, file=trim(dir)//'/formatted', status='old')
  close (15, status='delete')
  inquire (file=trim(dir)//'/formatted', exist=there)
  print *, there
  open (15, file=trim(dir)//'/scratch', status='replace')
  write (15, *) 'x'
  close (15)

  ! left open: libgfortran closes it when the program ends
  open (16, file=trim(dir)//'/left-open')
  write (16, '(a)') 'closed at exit'
end program units
