//! Packets for XRC targets whose message is for an SRQ of another process, and the thread that gives them to their queue pairs.
//!
//! A queue pair asks the SRQ's owner while it takes such a packet, and waits for the answer. So whoever holds the receive token
//! only puts the packet here: a stopped owner delays the queue pairs whose messages are for other processes, and no others.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use urxe_net::Headers;

use super::target::Target;
use crate::counters::bump;
use crate::device::Device;
use crate::host::Origin;
use crate::qp::Qp;
use crate::{lock, port_events, sanitizer, threads};

/// Packets that may wait, of 4 KiB at most. More are lost, as in the full buffer of a socket: their requester repeats them.
const ROOM: usize = 1024;

/// The queue and its thread.
#[derive(Debug, Default)]
pub(crate) struct RxQueue {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    filled: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// The thread runs, and takes what is put here.
    is_served: bool,
}

struct Job {
    qp: Arc<Qp>,
    work: Work,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} for {}", if matches!(self.work, Work::Resume) { "more" } else { "a packet" }, self.qp.qpn())
    }
}

enum Work {
    /// Takes a packet: its bytes, or `None` for a damaged one.
    Take { origin: Origin, peer: SocketAddr, bytes: Option<Box<[u8]>> },
    /// Sends what is left to be sent.
    Resume,
}

/// Starts the thread of a device, unless it runs. If the system refuses, queue pairs ask where they receive.
pub(crate) fn start(device: &Arc<Device>) {
    let rx = device.xrc_rx();
    let mut thread = lock(&rx.thread);
    if thread.is_some() {
        return;
    }
    lock(&rx.shared.queue).is_served = true;
    let (of, shared) = (Arc::clone(device), Arc::clone(&rx.shared));
    let run = move || {
        let _unchecked = sanitizer::Unchecked::begin();
        threads::ask_for_promptness();
        if catch_unwind(AssertUnwindSafe(|| shared.serve(&of))).is_err() {
            port_events::devices_failed();
        }
    };
    let started = threads::without_signals(|| thread::Builder::new().name("urxe-xrc-rx".into()).spawn(run));
    if started.is_err() {
        lock(&rx.shared.queue).is_served = false;
    }
    *thread = started.ok();
}

/// Ends the thread of a device. What waits is lost.
pub(crate) fn close(device: &Device) {
    let rx = device.xrc_rx();
    let thread = lock(&rx.thread).take();
    let waiting = {
        let mut queue = lock(&rx.shared.queue);
        queue.is_served = false;
        std::mem::take(&mut queue.jobs)
    };
    drop(waiting);
    rx.shared.filled.notify_all();
    if let Some(thread) = thread {
        // A thread that panicked has nothing left to end.
        let _ = thread.join();
    }
}

impl RxQueue {
    /// Puts a packet here, its bytes or `None` for a damaged one. `None` if nobody would take it. Returns whether the queue pair
    /// has accepted an earlier packet of its sender.
    pub(crate) fn put(&self, qp: &Arc<Qp>, headers: &Headers, bytes: Option<&[u8]>) -> Option<bool> {
        let target = qp.xrc_target()?;
        let (origin, peer) = (Origin::from(headers), headers.peer);
        let take = || Work::Take { origin, peer, bytes: bytes.map(Box::from) };
        self.add(qp, target, take).then(|| *lock(&target.accepted) == Some(peer))
    }

    /// Has a queue pair send what is left to be sent. False if it is to do so where it is: it is no target, or there is no
    /// thread.
    pub(crate) fn resume(&self, qp: &Arc<Qp>) -> bool {
        qp.xrc_target().is_some_and(|target| self.add(qp, target, || Work::Resume))
    }

    fn add(&self, qp: &Arc<Qp>, target: &Target, work: impl FnOnce() -> Work) -> bool {
        let mut queue = lock(&self.shared.queue);
        if !queue.is_served {
            return false;
        }
        if queue.jobs.len() < ROOM {
            target.jobs.fetch_add(1, Ordering::Relaxed);
            queue.jobs.push_back(Job { qp: Arc::clone(qp), work: work() });
            self.shared.filled.notify_one();
        } else {
            bump(&qp.port().counters().drop_no_answer);
        }
        true
    }
}

impl Shared {
    /// Does what is put here, until the queue is closed.
    fn serve(&self, device: &Device) {
        while let Some(Job { qp, work }) = self.next() {
            let Some(target) = qp.xrc_target() else { continue };
            device.with_work(|context| match work {
                Work::Take { origin, peer, bytes } => {
                    if qp.receive_xrc(context, &origin, bytes.as_deref()) {
                        *lock(&target.accepted) = Some(peer);
                    }
                }
                Work::Resume => qp.drive(context, |_, _| ()),
            });
            target.jobs.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits for the next job. `None`: the queue is closed.
    fn next(&self) -> Option<Job> {
        let mut queue = lock(&self.queue);
        loop {
            if !queue.is_served {
                return None;
            }
            if let Some(job) = queue.jobs.pop_front() {
                return Some(job);
            }
            queue = self.filled.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
