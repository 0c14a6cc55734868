//! ACKs that wait for the application's next request leave in time, whatever the application does instead.
//!
//! Each test has the target answer at once for some time, so that ACKs are delayed, and then has it do something else after a message.
//! The peer does not ask again, and must not have to.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::in_world;
use urxe_tests::verbs::child::{Child, Parent};
use urxe_tests::verbs::{Change, Context, Cq, End, Mr, Op, Options, Pair, RecvWr, SendWr, Status};

/// Exchanges after which ACKs are delayed.
const EXCHANGES: u64 = 100;
/// Delayed ACKs that the target does not send with an answer, where it lives on.
const ROUNDS: u64 = 10;

/// An ACK that has not come after 4.096 µs × 2^21, 8.6 s, was not sent: nothing is asked for again.
fn options() -> Options {
    Options { timeout: 21, retry_cnt: 0, ..Options::default() }
}

/// One end of the exchange.
struct Player {
    end: End,
    memory: Mr,
}

impl Player {
    fn new() -> Result<Self> {
        let end = End::new(&Context::open()?, &options())?;
        let memory = end.region(64)?;
        end.init(&options())?;
        let player = Self { end, memory };
        for _ in 0..8 {
            player.post_recv()?;
        }
        Ok(player)
    }

    fn number(&self) -> [u64; 1] {
        [u64::from(self.end.qp.number())]
    }

    fn connect(&self, [number]: [u64; 1]) -> Result<()> {
        self.end.ready_to_receive(u32::try_from(number)?, self.end.gid(&options())?, &options())?;
        self.end.ready_to_send(&options())
    }

    fn post_recv(&self) -> Result<()> {
        Ok(self.end.qp.post_recv(&RecvWr::new(0, &[self.memory.sge(0, 8)]))?)
    }

    /// Sends a message and waits for its ACK, which must come without asking again.
    fn send(&self) -> Result<()> {
        let wc = self.end.complete(&SendWr::new(Op::Send, &[self.memory.sge(8, 8)]))?;
        ensure!(wc.status == Status::SUCCESS, "{wc:?}");
        Ok(())
    }

    fn receive(&self) -> Result<()> {
        self.end.recv_cq.next()?;
        self.post_recv()
    }
}

/// Answers messages at once, and after each [`EXCHANGES`] and one message more does `instead`.
fn answer(parent: &mut Parent, rounds: u64, mut instead: impl FnMut(&Player, &mut Parent) -> Result<()>) -> Result<()> {
    let player = Player::new()?;
    parent.send(&player.number())?;
    player.connect(parent.receive()?)?;
    parent.send(&[0])?;
    for _ in 0..rounds {
        for _ in 0..EXCHANGES {
            player.receive()?;
            player.send()?;
        }
        player.end.recv_cq.next()?;
        instead(&player, parent)?;
        // The receive WQE of that message.
        player.post_recv()?;
    }
    Ok(())
}

/// Plays with a target that is going to do something else, and is told when the last message of a round has been
/// acknowledged.
fn exchange(rounds: u64, target: impl FnOnce(&mut Parent) -> Result<()>) -> Result<()> {
    play(rounds, target, |target| target.send(&[0]))
}

fn play(
    rounds: u64,
    target: impl FnOnce(&mut Parent) -> Result<()>,
    tell: impl Fn(&mut Child) -> Result<()>,
) -> Result<()> {
    let mut target = Child::fork(target)?;
    let player = Player::new()?;
    player.connect(target.receive()?)?;
    target.send(&player.number())?;
    target.receive::<1>()?;
    for round in 0..rounds {
        for _ in 0..EXCHANGES {
            player.send()?;
            player.receive()?;
        }
        player.send().with_context(|| format!("the last message of round {round}"))?;
        tell(&mut target)?;
    }
    target.finish()
}

#[test]
fn the_target_sleeps() {
    in_world(|| exchange(ROUNDS, |parent| answer(parent, ROUNDS, |_, parent| parent.receive::<1>().map(drop))));
}

/// So does a program that waits for an RDMA WRITE, or for something else.
#[test]
fn the_target_spins_without_polling() {
    in_world(|| {
        exchange(ROUNDS, |parent| {
            answer(parent, ROUNDS, |_, parent| {
                let until = Instant::now() + Duration::from_millis(50);
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
                parent.receive::<1>().map(drop)
            })
        })
    });
}

#[test]
fn the_target_goes_on_polling() {
    in_world(|| {
        exchange(ROUNDS, |parent| {
            answer(parent, ROUNDS, |player, parent| {
                let until = Instant::now() + Duration::from_millis(50);
                while Instant::now() < until {
                    ensure!(player.end.send_cq.poll(1)?.is_empty());
                }
                parent.receive::<1>().map(drop)
            })
        })
    });
}

#[test]
fn the_target_asks_for_an_event() {
    in_world(|| {
        exchange(ROUNDS, |parent| {
            answer(parent, ROUNDS, |player, parent| {
                player.end.recv_cq.arm(false)?;
                parent.receive::<1>().map(drop)
            })
        })
    });
}

/// In the states that come then there are no ACKs.
#[test]
fn the_target_ends_the_connection() {
    in_world(|| {
        for state in [v::IBV_QPS_ERR, v::IBV_QPS_RESET] {
            exchange(1, |parent| {
                answer(parent, 1, |player, parent| {
                    player.end.qp.modify(&Change::to(state))?;
                    parent.receive::<1>()?;
                    // Takes receive requests again.
                    player.end.qp.modify(&Change::to(v::IBV_QPS_RESET))?;
                    player.end.init(&options())
                })
            })?;
        }
        Ok(())
    });
}

#[test]
fn the_target_destroys_the_queue_pair() {
    in_world(|| {
        exchange(1, |parent| {
            answer(parent, 1, |player, parent| {
                player.end.qp.destroy()?;
                parent.receive::<1>()?;
                std::process::exit(0)
            })
        })
    });
}

#[test]
fn the_target_exits() {
    in_world(|| play(1, |parent| answer(parent, 1, |_, _| std::process::exit(0)), |_| Ok(())));
}

/// A program that has polled a message may be done with the connection: rdma_disconnect(3) moves the queue pair to ERR. It may be
/// quicker than whoever received the packet, here a thread that polls another queue; the ACK leaves all the same.
#[test]
fn the_application_is_quicker_than_the_ack() {
    const CONNECTIONS: usize = 1000;
    // Asked for again seven times after a second each, which a lost ACK makes fail.
    let options = Options::default();
    in_world(|| {
        let context = Context::open()?;
        let other = Cq::new(&context, 1, None)?;
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let polling = scope.spawn(|| -> Result<()> {
                while !is_over.load(Ordering::Relaxed) {
                    ensure!(other.poll(1)?.is_empty());
                }
                Ok(())
            });
            let connect = |round: usize| -> Result<()> {
                let Pair { near, far } = Pair::on(&context, &options)?;
                let memory = [near.region(64)?, far.region(64)?];
                far.qp.post_recv(&RecvWr::new(0, &[memory[1].sge(0, 8)]))?;
                near.qp.post_send(&SendWr::new(Op::Send, &[memory[0].sge(0, 8)]))?;
                ensure!(far.recv_cq.next()?.status == Status::SUCCESS);
                match round % 3 {
                    0 => far.qp.modify(&Change::to(v::IBV_QPS_ERR))?,
                    1 => far.qp.modify(&Change::to(v::IBV_QPS_RESET))?,
                    _ => far.qp.destroy()?,
                }
                let wc = near.send_cq.next()?;
                ensure!(wc.status == Status::SUCCESS, "{wc:?}");
                Ok(())
            };
            let connected =
                (0..CONNECTIONS).try_for_each(|round| connect(round).with_context(|| format!("round {round}")));
            is_over.store(true, Ordering::Relaxed);
            polling.join().map_err(|_| anyhow::anyhow!("the polling thread panicked"))?.and(connected)
        })
    });
}
