//! A process ends right after it has polled a message, without a word: its peer's request completes all the same.
//!
//! A card acknowledges whatever becomes of the process. `URXE_EXITS` sets how many processes end on each way; `make soak` asks
//! for 2000.

use anyhow::{Context as _, Result, ensure};
use urxe_tests::verbs::child::{Child, Parent};
use urxe_tests::verbs::{Context, End, Mr, Op, Options, PATIENCE, RecvWr, SendWr, Status, is_readable};
use urxe_tests::{in_world, in_world_over_udp};

/// Processes that end on each way.
const EXITS: usize = 54;
/// A user that is not root.
const ANOTHER: libc::uid_t = 1000;
/// Exchanges before the last message, which make its receiver one that answers at once.
const EXCHANGES: usize = 16;

/// How the receiver waits for the last message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// Polling.
    Polls,
    /// Polling, after an answer to each message before.
    Answers,
    /// Sleeping until there is an event.
    Sleeps,
}

/// How it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Exit,
    Kill,
    Exec,
}

/// Process that opens its device first, and so owns the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Receiver,
    Sender,
}

const WAITS: usize = 3;
const ENDINGS: [Ending; 3] = [Ending::Exit, Ending::Kill, Ending::Exec];
const OWNERS: [Owner; 2] = [Owner::Receiver, Owner::Sender];

/// Processes that end in each case.
fn exits() -> Result<usize> {
    let all = match std::env::var("URXE_EXITS") {
        Ok(text) => text.parse().with_context(|| format!("URXE_EXITS is not a number: {text}"))?,
        Err(_) => EXITS,
    };
    Ok(usize::div_ceil(all, WAITS * ENDINGS.len() * OWNERS.len()))
}

impl Ending {
    /// Ends this process, before anything else in it gets a chance to run.
    fn end(self) -> ! {
        let sleep = [c"/bin/sleep".as_ptr(), c"1000".as_ptr(), std::ptr::null()];
        // SAFETY: the program's name and arguments are terminated strings, the lists end with null; the other calls take
        // plain numbers.
        unsafe {
            match self {
                Self::Exit => {}
                Self::Kill => _ = libc::kill(libc::getpid(), libc::SIGKILL),
                Self::Exec => _ = libc::execve(sleep[0], sleep.as_ptr(), [std::ptr::null()].as_ptr()),
            }
            libc::_exit(0)
        }
    }
}

/// One end of a connection.
struct Peer {
    end: End,
    memory: Mr,
}

impl Peer {
    fn new(options: &Options) -> Result<Self> {
        let end = End::new(&Context::open()?, options)?;
        let memory = end.region(64)?;
        end.init(options)?;
        for _ in 0..8 {
            end.qp.post_recv(&RecvWr::new(0, &[memory.sge(0, 8)]))?;
        }
        Ok(Self { end, memory })
    }

    fn number(&self) -> [u64; 1] {
        [u64::from(self.end.qp.number())]
    }

    fn connect(&self, [number]: [u64; 1], options: &Options) -> Result<()> {
        self.end.ready_to_receive(u32::try_from(number)?, self.end.gid(options)?, options)?;
        self.end.ready_to_send(options)
    }

    fn send(&self) -> Result<()> {
        let wc = self.end.complete(&SendWr::new(Op::Send, &[self.memory.sge(8, 8)]))?;
        ensure!(wc.status == Status::SUCCESS, "{wc:?}");
        Ok(())
    }

    fn receive(&self) -> Result<()> {
        let wc = self.end.recv_cq.next()?;
        ensure!(wc.status == Status::SUCCESS, "{wc:?}");
        Ok(self.end.qp.post_recv(&RecvWr::new(0, &[self.memory.sge(0, 8)]))?)
    }
}

fn options(wait: Wait) -> Options {
    Options { events: wait == Wait::Sleeps, ..Options::default() }
}

/// Receives messages, and ends with the last one.
fn receiver(parent: &mut Parent, wait: Wait, ending: Ending, user: Option<libc::uid_t>) -> Result<()> {
    let options = options(wait);
    parent.receive::<1>()?;
    if let Some(user) = user {
        // SAFETY: plain numbers.
        let changed = unsafe { libc::setgid(user) == 0 && libc::setuid(user) == 0 };
        ensure!(changed, "setuid: {}", std::io::Error::last_os_error());
    }
    let peer = Peer::new(&options)?;
    let channel = peer.end.channel.as_ref();
    if wait == Wait::Sleeps {
        peer.end.recv_cq.arm(false)?;
    }
    parent.send(&peer.number())?;
    peer.connect(parent.receive()?, &options)?;
    parent.send(&[0])?;
    if wait == Wait::Answers {
        for _ in 0..EXCHANGES {
            peer.receive()?;
            peer.send()?;
        }
    }
    if let Some(channel) = channel {
        ensure!(is_readable(channel.fd(), PATIENCE) && channel.event()? == peer.end.recv_cq.address());
    }
    let wc = peer.end.recv_cq.next()?;
    if wc.status == Status::SUCCESS {
        ending.end();
    }
    anyhow::bail!("{wc:?}")
}

/// Sends messages to a process that ends with the last one.
fn send_to_mortal(wait: Wait, ending: Ending, owner: Owner, user: Option<libc::uid_t>) -> Result<()> {
    let mut mortal = Child::fork(|parent| receiver(parent, wait, ending, user))?;
    let options = options(wait);
    let early = if owner == Owner::Sender { Some(Peer::new(&options)?) } else { None };
    mortal.send(&[0])?;
    let number = mortal.receive()?;
    let peer = early.map_or_else(|| Peer::new(&options), Ok)?;
    peer.connect(number, &options)?;
    mortal.send(&peer.number())?;
    mortal.receive::<1>()?;
    if wait == Wait::Answers {
        for _ in 0..EXCHANGES {
            peer.send()?;
            peer.receive()?;
        }
    }
    peer.send()
}

/// Has all that runs from now on in this process and in its children share one processor.
fn on_one_processor() -> Result<()> {
    // SAFETY: all-zero is an empty set; the calls read and write sets of that size.
    let set = unsafe {
        let mut all = std::mem::zeroed::<libc::cpu_set_t>();
        let size = size_of_val(&all);
        ensure!(libc::sched_getaffinity(0, size, &raw mut all) == 0);
        let cpu = (0..libc::CPU_SETSIZE as usize).find(|cpu| libc::CPU_ISSET(*cpu, &all)).context("no processor")?;
        let mut one = std::mem::zeroed::<libc::cpu_set_t>();
        libc::CPU_SET(cpu, &mut one);
        libc::sched_setaffinity(0, size, &raw const one)
    };
    ensure!(set == 0, "sched_setaffinity: {}", std::io::Error::last_os_error());
    Ok(())
}

/// Has processes end; all that fails is told at once.
fn end_processes(wait: Wait, owners: &[Owner], user: Option<libc::uid_t>) -> Result<()> {
    let (mut failures, mut ends) = (Vec::new(), 0);
    let exits = exits()?;
    for ending in ENDINGS {
        for owner in owners {
            ends += exits;
            let failed =
                (0..exits).filter_map(|_| send_to_mortal(wait, ending, *owner, user).err()).collect::<Vec<_>>();
            if let Some(first) = failed.first() {
                failures.push(format!("{ending:?}, owner {owner:?}: {} of {exits}: {first:#}", failed.len()));
            }
        }
    }
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    println!("{ends} processes have ended, and nobody was told that they had not received");
    Ok(())
}

/// Tests of each way on which messages go.
macro_rules! ways {
    ($($name:ident: $wait:expr,)*) => { $(
        mod $name {
            use super::*;

            //= spec/hosts.md#net-034
            //= type=test
            //# A message MUST be acknowledged, though its receiver ends as soon as it has polled it: before it can be polled, or
            //# by what the peer's process finds.
            #[test]
            fn through_shared_memory() {
                in_world(|| end_processes($wait, &OWNERS, None));
            }

            #[test]
            fn through_shared_memory_on_one_processor() {
                in_world(|| on_one_processor().and_then(|()| end_processes($wait, &OWNERS, None)));
            }

            #[test]
            fn over_udp() {
                in_world_over_udp(|| end_processes($wait, &OWNERS, None));
            }

            #[test]
            fn over_udp_on_one_processor() {
                in_world_over_udp(|| on_one_processor().and_then(|()| end_processes($wait, &OWNERS, None)));
            }

            /// Without a process of the same user, as on a host with one process, the ACK leaves first.
            #[test]
            #[ignore = "of two users: only root can be both"]
            fn of_another_user() {
                in_world(|| on_one_processor().and_then(|()| end_processes($wait, &[Owner::Sender], Some(ANOTHER))));
            }
        }
    )* };
}

ways! {
    polls: Wait::Polls,
    answers: Wait::Answers,
    sleeps: Wait::Sleeps,
}
