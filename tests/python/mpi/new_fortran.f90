! Calls collectives by the module mpi_f08: typed handles, no error argument.
program new_fortran
  use mpi_f08
  implicit none
  integer :: rank, ranks, turn, provided
  integer :: one(3), all(3)
  real :: x(1000)
  type(MPI_Comm) :: part
  call MPI_Init_thread(MPI_THREAD_FUNNELED, provided)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  call MPI_Comm_dup(MPI_COMM_WORLD, part)
  do turn = 1, 5
    one = [rank, 2 * rank, turn]
    call MPI_Allreduce(one, all, 3, MPI_INTEGER, MPI_SUM, part)
    call check(all(1) == ranks * (ranks - 1) / 2 .and. all(3) == turn * ranks)
    x = real(rank)
    call MPI_Allreduce(MPI_IN_PLACE, x, 1000, MPI_REAL, MPI_MAX, part)
    call check(x(1) == ranks - 1 .and. x(1000) == ranks - 1)
    one = merge(turn, 0, rank == ranks - 1)
    call MPI_Bcast(one, 3, MPI_INTEGER, ranks - 1, part)
    call check(one(1) == turn)
    call MPI_Barrier(part)
  end do
  call MPI_Comm_free(part)
  if (rank == 0) print *, 'new Fortran is right'
  call MPI_Finalize()
contains
  subroutine check(right)
    logical, intent(in) :: right
    if (.not. right) call MPI_Abort(MPI_COMM_WORLD, 3)
  end subroutine
end program
