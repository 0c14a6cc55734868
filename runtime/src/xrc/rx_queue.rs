//! Packets for XRC targets whose message is for an SRQ of another process, and the thread that gives them to their queue pairs.
//!
//! A queue pair asks the SRQ's owner while it takes such a packet, and waits for the answer. So whoever holds the receive token
//! only puts the packet here: a stopped owner delays the queue pairs whose messages are for other processes, and no others.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use urxe_net::{Datagram, Headers};
use urxe_wire::Packet;

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
    Take { headers: Headers, bytes: Option<Box<[u8]>> },
    /// Sends what is left to be sent.
    Resume,
}

/// Starts the thread of a device, unless it runs. If the system refuses, or the device has an
/// [interceptor](crate::interceptor) that touches packets and so is to see what happens in their order, queue pairs ask where they
/// receive.
pub(crate) fn start(device: &Arc<Device>) {
    if device.packet_interceptor().is_some() {
        return;
    }
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
        let mut queue = lock(&self.shared.queue);
        if !queue.is_served {
            return None;
        }
        if queue.jobs.len() < ROOM {
            self.add(&mut queue, qp, target, Work::Take { headers: *headers, bytes: bytes.map(Box::from) });
        } else {
            bump(&qp.device().counters().drop_no_answer);
        }
        drop(queue);
        Some(*lock(&target.accepted) == Some(headers.peer))
    }

    /// Has a queue pair send what is left to be sent behind its packets that wait here. False if none does, and the caller is to
    /// drive the queue pair. To be called with the receive token: else a packet may be put here meanwhile.
    pub(crate) fn resume(&self, qp: &Arc<Qp>) -> bool {
        let Some(target) = qp.xrc_target().filter(|target| target.is_busy()) else { return false };
        let mut queue = lock(&self.shared.queue);
        // Not subject to `ROOM`: nobody would repeat it, and each target has one.
        if queue.is_served && !target.resumes.swap(true, Ordering::Relaxed) {
            self.add(&mut queue, qp, target, Work::Resume);
        }
        queue.is_served
    }

    fn add(&self, queue: &mut Queue, qp: &Arc<Qp>, target: &Target, work: Work) {
        target.jobs.fetch_add(1, Ordering::Relaxed);
        queue.jobs.push_back(Job { qp: Arc::clone(qp), work });
        self.shared.filled.notify_one();
    }
}

impl Shared {
    /// Carries out the work of the queue until the queue is closed.
    fn serve(&self, device: &Device) {
        while let Some(Job { qp, work }) = self.next() {
            let Some(target) = qp.xrc_target() else { continue };
            let interceptor = device.interceptor();
            // What this thread reports belongs to the job: a packet, or none.
            if let Some(interceptor) = interceptor {
                interceptor.suspend();
            }
            device.with_work(|context| match work {
                Work::Take { headers, bytes } => {
                    let parsed = bytes.as_deref().and_then(|bytes| Some((Packet::parse(bytes).ok()?, bytes)));
                    if let (Some(interceptor), Some((_, payload))) = (interceptor, &parsed) {
                        let whole =
                            Datagram { headers: &headers, expected_id: 0, flow: None, payload, is_refused: false };
                        interceptor.received(&whole, &|| true);
                    }
                    let packet = parsed.as_ref().map(|(packet, bytes)| (packet, bytes.len()));
                    if qp.receive_xrc(context, &Origin::from(&headers), packet) {
                        *lock(&target.accepted) = Some(headers.peer);
                    }
                }
                Work::Resume => {
                    // Before it sends: what is left then may wait here again.
                    target.resumes.store(false, Ordering::Relaxed);
                    qp.drive(context, |_, _| ());
                }
            });
            if let Some(interceptor) = interceptor {
                interceptor.resume();
            }
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

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::process::Command;

    use urxe_engine::{Pd, QpCap, QpConfig, QpType};
    use urxe_net::Interface;
    use urxe_wire::Mtu;

    use super::*;
    use crate::async_events::AsyncEvents;
    use crate::device::OpenOptions;
    use crate::event::{EventSink, EventType};

    #[derive(Debug)]
    struct NoEvents;

    impl EventSink for NoEvents {
        fn completion(&self, _cq: u64) {}

        fn async_event(&self, _element: u64, _event_type: EventType) {}

        fn discard(&self, _element: u64) -> usize {
            0
        }

        fn refill(&self) {}

        fn end(&self) {}
    }

    /// Runs `test` with an XRC target of a device in a network namespace of its own.
    fn with_target(test: impl FnOnce(&Arc<Qp>) + Send) {
        let run = || {
            // SAFETY: no pointers; only the calling thread changes its namespace.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "these tests need root or user namespaces");
            let up = {
                let _alone = lock(&crate::memory::shared_pages::tests::ALONE);
                Command::new("ip").args(["link", "set", "lo", "up"]).status().expect("iproute2 is installed")
            };
            assert!(up.success());
            let device = Device::open("test", Interface::by_name("lo").unwrap(), OpenOptions::default()).unwrap();
            let device = Arc::new(device);
            let config = QpConfig {
                congestion: urxe_engine::congestion::CongestionSettings::NONE,
                ack_timer: urxe_engine::AckTimer::Specified,
                selective: None,
                qpn: device.net().alloc_qpn().unwrap(),
                qp_type: QpType::XrcRecv,
                pd: Pd(1),
                cap: QpCap { max_send_wr: 0, max_recv_wr: 0, max_send_sge: 0, max_recv_sge: 0, max_inline_data: 0 },
                sq_sig_all: false,
                send_cq: None,
                recv_cq: None,
                srq: None,
                xrcd: None,
                window: device.window(),
                port_mtu: Mtu::Mtu4096,
                quirks: Default::default(),
                counters: Vec::new(),
            };
            test(&Qp::new(&device, config, AsyncEvents::new(Arc::new(NoEvents), 7)));
            device.close();
        };
        thread::scope(|scope| scope.spawn(run).join().unwrap());
    }

    #[test]
    fn only_a_target_whose_packets_wait_resumes_here() {
        with_target(|qp| {
            let rx = qp.device().xrc_rx();
            // As with a thread that waits for a stopped process.
            lock(&rx.shared.queue).is_served = true;
            assert!(!rx.resume(qp), "nothing waits");
            let peer = SocketAddr::from(([127, 0, 0, 1], 4791));
            let headers = Headers { local: peer, peer, tclass: 0, hop_limit: 0 };
            for _ in 0..=ROOM {
                assert_eq!(rx.put(qp, &headers, None), Some(false));
            }
            let dropped = || qp.device().all_counters().find(|(name, _)| *name == "drop_no_answer").unwrap().1;
            assert_eq!(dropped(), 1, "one packet found no room");
            assert!(rx.resume(qp) && rx.resume(qp));
            let queue = lock(&rx.shared.queue);
            assert_eq!((queue.jobs.len(), dropped()), (ROOM + 1, 1));
            assert!(matches!(queue.jobs.back(), Some(Job { work: Work::Resume, .. })));
        });
    }
}
