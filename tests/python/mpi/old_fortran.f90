! Calls collectives as programs in old Fortran do, with mpif.h, in place as well.
program old_fortran
  implicit none
  include 'mpif.h'
  integer :: ierror, rank, ranks, turn, i
  integer :: one(3), all(3), wide(64), counts(64), places(64)
  double precision :: x(2), y(2)
  call MPI_INIT(ierror)
  call MPI_COMM_RANK(MPI_COMM_WORLD, rank, ierror)
  call MPI_COMM_SIZE(MPI_COMM_WORLD, ranks, ierror)
  do turn = 1, 5
    one = (/ rank, 2 * rank, turn /)
    call MPI_ALLREDUCE(one, all, 3, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, ierror)
    call check(ierror == MPI_SUCCESS .and. all(1) == ranks * (ranks - 1) / 2 .and. all(3) == turn * ranks)
    x = (/ dble(rank), 1.0d0 /)
    call MPI_ALLREDUCE(MPI_IN_PLACE, x, 2, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, ierror)
    call check(x(1) == ranks * (ranks - 1) / 2 .and. x(2) == ranks)
    y = (/ dble(rank), dble(turn) /)
    if (rank == 0) then
      call MPI_REDUCE(MPI_IN_PLACE, y, 2, MPI_DOUBLE_PRECISION, MPI_MAX, 0, MPI_COMM_WORLD, ierror)
      call check(y(1) == ranks - 1)
    else
      call MPI_REDUCE(y, x, 2, MPI_DOUBLE_PRECISION, MPI_MAX, 0, MPI_COMM_WORLD, ierror)
    end if
    one = turn * (1 - min(rank, 1))
    call MPI_BCAST(one, 3, MPI_INTEGER, 0, MPI_COMM_WORLD, ierror)
    call check(one(3) == turn)
    wide = -1
    wide(rank + 1) = rank + turn
    call MPI_ALLGATHER(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, wide, 1, MPI_INTEGER, MPI_COMM_WORLD, ierror)
    do i = 1, ranks
      call check(wide(i) == i - 1 + turn)
      counts(i) = 1
      places(i) = 2 * (i - 1)
    end do
    wide = -1
    call MPI_ALLGATHERV(rank, 1, MPI_INTEGER, wide, counts, places, MPI_INTEGER, MPI_COMM_WORLD, ierror)
    do i = 1, ranks
      call check(wide(2 * i - 1) == i - 1 .and. wide(2 * i) == -1)
    end do
    call MPI_BARRIER(MPI_COMM_WORLD, ierror)
  end do
  if (rank == 0) print *, 'old Fortran is right'
  call MPI_FINALIZE(ierror)
contains
  subroutine check(right)
    logical, intent(in) :: right
    integer :: code
    if (right) return
    print *, 'wrong on rank', rank
    call MPI_ABORT(MPI_COMM_WORLD, 3, code)
  end subroutine
end program
