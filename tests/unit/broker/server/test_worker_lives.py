"""When a worker is started again: at once, and with growing pauses if it does not last."""

from postdate.broker.server.worker_lives import LASTING_S, PAUSE_MAX_S, WorkerLives


def test_one_that_has_lasted_begins_again_at_once_each_time() -> None:
    lives = WorkerLives("worker 0")
    for begun in (0.0, 1000.0, 2000.0):
        lives.begin(begun)
        lives.become_ready()
        assert lives.end(begun + LASTING_S, -9) == 0.0


def test_one_that_does_not_last_begins_again_at_once_and_then_later_and_later() -> None:
    lives = WorkerLives("worker 0")
    pauses = []
    for begun in range(12):
        lives.begin(begun)
        pauses.append(lives.end(begun + 0.5, 2))

    assert pauses[:5] == [0.0, 0.5, 1.0, 2.0, 4.0]
    assert pauses[-1] == PAUSE_MAX_S


def test_a_long_opening_that_fails_is_no_life_that_lasted() -> None:
    lives = WorkerLives("worker 0")
    lives.begin(0)
    lives.end(LASTING_S, 2)
    lives.begin(LASTING_S)

    assert lives.end(2 * LASTING_S, 2) > 0


def test_the_problem_says_how_it_ended_until_it_is_ready_again() -> None:
    lives = WorkerLives("worker 3")
    lives.begin(0)
    starting = lives.problem
    lives.become_ready()
    working = lives.problem
    lives.end(1, -9)
    killed = lives.problem
    lives.begin(1)
    lives.end(2, 1)
    refused = lives.problem
    lives.begin(3)
    lives.become_ready()

    assert starting == "worker 3 is starting"
    assert working is None
    assert killed == "worker 3 is starting again, as it was ended by signal 9; the log says why"
    assert refused == "worker 3 is starting again, as it ended with exit code 1; the log says why"
    assert lives.problem is None
