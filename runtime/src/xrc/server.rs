//! Answering other processes that have messages for this one's XRC SRQs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use urxe_engine::memory::access;
use urxe_engine::{
    AccessRequest, Accessor, Cqe, Invalidation, Memory, MemoryOp, RecvWr, Refusal, WcOpcode, XrcDomain, scatter,
};
use urxe_net::{Channel, descriptor_share};
use urxe_wire::Qpn;

use super::listeners::{Running, Shared, stop};
use super::message::{self, Act, Answer, Inode, Range, Request, Wqe};
use crate::device::Device;
use crate::srq::Srq;
use crate::{clock, lock, port_events, sanitizer, threads};

/// Requests answered on one connection before others get their turn.
const BUDGET: usize = 16;
/// Lines there may be, in shares of an eighth of the descriptors: half of them, for a process that is not answered has no
/// other way.
const SHARES: usize = 4;
/// How long newcomers wait when there is no descriptor for them, in milliseconds.
const PAUSE: i32 = 100;
/// The longest message, which is the most that a receive takes (IBA 9.7.1).
const LONGEST: u64 = 1 << 31;

impl Device {
    /// Lets messages reach an XRC SRQ, also those of other processes that have the domain's file.
    ///
    /// # Errors
    /// The error of a system call that these need; nothing is changed then.
    pub fn add_srq(self: &Arc<Self>, srq: &Arc<Srq>) -> io::Result<()> {
        if let Some(xrc) = srq.xrc() {
            self.xrc_srqs().add(srq);
            if self.xrc_srqs().client().is_shared(xrc.domain) {
                receive(self, xrc.number).inspect_err(|_| self.xrc_srqs().remove(xrc))?;
            }
        }
        Ok(())
    }

    /// Removes an XRC SRQ, and gives its number back.
    pub fn remove_srq(&self, srq: &Srq) {
        if let Some(xrc) = srq.xrc() {
            self.xrc_srqs().remove(xrc);
            if self.xrc_srqs().client().is_shared(xrc.domain) {
                turn_away(self, xrc.number);
            }
            self.net().free_qpn(xrc.number);
        }
    }
}

/// Lets other processes that have the file of its domain ask for an SRQ.
fn receive(device: &Arc<Device>, number: Qpn) -> io::Result<()> {
    let mut running = lock(&device.server().0);
    let shared = match &*running {
        Some(running) => Arc::clone(&running.shared),
        None => {
            let new = start(device)?;
            let shared = Arc::clone(&new.shared);
            *running = Some(new);
            shared
        }
    };
    let opened = shared.open(device.net(), number);
    if opened.is_err() && lock(&shared.listeners).is_empty() {
        stop(running.take());
    }
    opened
}

/// Ends that.
fn turn_away(device: &Device, number: Qpn) {
    let mut running = lock(&device.server().0);
    if running.as_ref().is_some_and(|running| running.shared.close(number)) {
        stop(running.take());
    }
}

/// Turns everybody away.
pub(super) fn close(device: &Device) {
    stop(lock(&device.server().0).take());
}

fn start(device: &Arc<Device>) -> io::Result<Running> {
    // SAFETY: no pointers.
    let wake = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if wake < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: new, and ours.
    let wake = unsafe { OwnedFd::from_raw_fd(wake) };
    let wake = device.net().keep_file(wake.as_fd())?;
    let shared = Arc::new(Shared { listeners: Mutex::default(), stop: AtomicBool::new(false), wake });
    let (serving, served) = (Arc::clone(&shared), Arc::clone(device));
    let serve = move || {
        let _unchecked = sanitizer::Unchecked::begin();
        threads::ask_for_promptness();
        if catch_unwind(AssertUnwindSafe(|| serve(&served, &serving))).is_err() {
            port_events::devices_failed();
        }
    };
    let thread = threads::without_signals(|| thread::Builder::new().name("urxe-xrc".into()).spawn(serve))?;
    Ok(Running { shared, thread })
}

/// Accepts the connections that wait at the listener of a block, up to `most`. False if there is no descriptor for them now.
fn admit(shared: &Shared, block: u16, connections: &mut Vec<Connection>, most: usize) -> bool {
    // It may be closed since it was looked at.
    let listeners = lock(&shared.listeners);
    let Some((listener, _)) = listeners.get(&block) else { return true };
    while connections.len() < most {
        match listener.accept() {
            Ok(Some(channel)) => connections.push(Connection::new(channel)),
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
    true
}

/// Answers until it is told to stop. Takes no receive token and no queue pair's engine, and waits for no other process:
/// one that waits for this thread may be waited for by that process' own.
fn serve(device: &Device, shared: &Shared) {
    let mut connections: Vec<Connection> = Vec::new();
    let mut buffer = [0; message::LENGTH];
    let most = SHARES * descriptor_share();
    let mut pauses = false;
    while !shared.stop.load(Ordering::Acquire) {
        let entry = |fd: RawFd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // A connection beyond the limit waits in the backlog until another one ends.
        let listeners: Vec<(u16, RawFd)> = if pauses || connections.len() >= most {
            Vec::new()
        } else {
            lock(&shared.listeners).iter().map(|(block, (listener, _))| (*block, listener.as_raw_fd())).collect()
        };
        let mut polled = vec![entry(shared.wake.as_raw_fd())];
        polled.extend(connections.iter().map(|connection| entry(connection.channel.as_raw_fd())));
        polled.extend(listeners.iter().map(|(_, fd)| entry(*fd)));
        let count = polled.len() as libc::nfds_t;
        // SAFETY: an array of that many entries. What can go wrong is an interruption, and then nothing is ready.
        unsafe { libc::poll(polled.as_mut_ptr(), count, if pauses { PAUSE } else { -1 }) };
        if !shared.wake.is_ours() {
            // The application has closed all descriptors, and what is under their numbers is its own.
            return;
        }
        let mut ready = polled.into_iter().map(|entry| entry.revents != 0);
        if ready.next() == Some(true) {
            shared.woken();
        }
        connections.retain_mut(|connection| ready.next() != Some(true) || connection.serve(device, &mut buffer));
        pauses = false;
        for ((block, _), _) in listeners.iter().zip(ready).filter(|(_, ready)| *ready) {
            pauses |= !admit(shared, *block, &mut connections, most);
        }
    }
    for mut connection in connections {
        connection.leave(device);
    }
}

/// Another process, and what it has taken.
struct Connection {
    channel: Channel,
    /// Domain whose file the process has passed; `None` before.
    domain: Option<XrcDomain>,
    taken: BTreeMap<Wqe, Taken>,
    last: u32,
}

/// A WQE of an SRQ.
struct Taken {
    srq: Qpn,
    wr: RecvWr,
}

impl Connection {
    const fn new(channel: Channel) -> Self {
        Self { channel, domain: None, taken: BTreeMap::new(), last: 0 }
    }

    /// Answers some of what it asks. False when it is gone, and has left.
    fn serve(&mut self, device: &Device, buffer: &mut [u8; message::LENGTH]) -> bool {
        if !self.channel.is_ours() {
            // The application has closed it, and what is under the number is its own.
            self.leave(device);
            return false;
        }
        for _ in 0..BUDGET {
            match self.channel.receive(buffer) {
                Ok(None) => return true,
                Ok(Some((length, file))) => {
                    let request = buffer.get(..length).and_then(|message| Request::parse(message, clock::now()));
                    if request.and_then(|request| self.act(device, &request, file)).is_some() {
                        continue;
                    }
                }
                Err(_) => {}
            }
            self.leave(device);
            return false;
        }
        true
    }

    /// Gives back what it has taken, in the order in which it was.
    fn leave(&mut self, device: &Device) {
        while let Some((_, taken)) = self.taken.pop_last() {
            self.give_back(device, taken);
        }
    }

    fn give_back(&self, device: &Device, taken: Taken) {
        if let Some(srq) = self.srq(device, taken.srq) {
            srq.with(|queue| queue.give_back(taken.wr));
        }
    }

    fn srq(&self, device: &Device, number: Qpn) -> Option<Arc<Srq>> {
        device.xrc_srqs().here(self.domain?, number)
    }

    /// Answers a request. `None` if it cannot be answered: the connection ends then.
    fn act(&mut self, device: &Device, request: &Request<'_>, file: Option<OwnedFd>) -> Option<()> {
        if let Request::Join { interface } = *request {
            self.domain = self.domain.or(domain(device, interface, file?));
            self.channel.refuse_files();
            return self.domain.map(drop);
        }
        // Nothing else before that.
        self.domain?;
        let mut read = [0; message::MOST];
        let answer = match *request {
            Request::Join { .. } => return None,
            Request::Find { srq } => self.srq(device, srq).map_or(Answer::NotThere, |_| Answer::Done(0)),
            Request::Take { srq } => self.take(device, srq),
            Request::Scatter { wqe, offset, data } => self.scatter(device, wqe, offset, data),
            Request::Access { srq, qpn, range, act } => match self.srq(device, srq) {
                Some(srq) => access_memory(device, &srq, qpn, &range, act, &mut read),
                None => Answer::NotThere,
            },
            Request::Invalidate { srq, qpn, key } => match self.srq(device, srq) {
                Some(srq) => answer(device.memory().invalidate(srq.pd(), qpn, key, Invalidation::Remote).map(|()| 0)),
                None => Answer::NotThere,
            },
            Request::Complete { wqe, cqe } => {
                self.complete(device, wqe, cqe);
                return Some(());
            }
            Request::GiveBack { wqe } => {
                let taken = self.taken.remove(&wqe)?;
                self.give_back(device, taken);
                return Some(());
            }
        };
        let parts = answer.emit();
        self.channel.send([parts.head(), parts.payload]).ok()
    }

    fn take(&mut self, device: &Device, number: Qpn) -> Answer<'static> {
        let Some(srq) = self.srq(device, number) else { return Answer::NotThere };
        let Some(wr) = srq.take() else { return Answer::Empty };
        let room = u32::try_from(wr.buffers.length().min(LONGEST)).unwrap_or(u32::MAX);
        self.last = self.last.wrapping_add(1);
        let wqe = Wqe(self.last);
        self.taken.insert(wqe, Taken { srq: number, wr });
        Answer::Taken { wqe, room }
    }

    fn scatter(&self, device: &Device, wqe: Wqe, offset: u64, data: &[u8]) -> Answer<'static> {
        let found = self.taken.get(&wqe).and_then(|taken| Some((self.srq(device, taken.srq)?, taken)));
        let (Some((srq, taken)), Ok(offset)) = (found, usize::try_from(offset)) else { return Answer::NotThere };
        answer(scatter(&device.memory(), srq.pd(), &taken.wr.buffers, offset, data).map(|()| 0))
    }

    fn complete(&mut self, device: &Device, wqe: Wqe, cqe: Cqe) {
        let Some(taken) = self.taken.remove(&wqe) else { return };
        let cqe = bounded(cqe, taken.wr.buffers.length());
        if let Some(xrc) = self.srq(device, taken.srq).as_ref().and_then(|srq| srq.xrc()) {
            device.complete_for_other(&xrc.cq, Cqe { wr_id: taken.wr.wr_id, ..cqe });
        }
    }
}

/// A completion as the application may see it, of a WQE with so many bytes of buffers. It reads as many bytes of them as
/// the completion tells, and another process may tell more.
fn bounded(cqe: Cqe, length: u64) -> Cqe {
    match cqe.opcode {
        WcOpcode::Recv => Cqe { byte_len: cqe.byte_len.min(u32::try_from(length).unwrap_or(u32::MAX)), ..cqe },
        // A WRITE with immediate data tells of bytes elsewhere.
        _ => cqe,
    }
}

const fn answer(result: Result<u64, Refusal>) -> Answer<'static> {
    match result {
        Ok(found) => Answer::Done(found),
        Err(refusal) => Answer::Refused(refusal),
    }
}

/// Executes a remote access to memory in the SRQ's protection domain. Bytes that are read go to `room`.
fn access_memory<'a>(
    device: &Device,
    srq: &Srq,
    qpn: Qpn,
    range: &Range,
    act: Act<'_>,
    room: &'a mut [u8; message::MOST],
) -> Answer<'a> {
    let Range { key, access: rights, va, length } = *range;
    let request = AccessRequest { by: Accessor::Remote(srq.pd(), qpn), key, access: rights, va, length };
    let op = match act {
        Act::Read => {
            let Some(room) = usize::try_from(length).ok().and_then(|length| room.get_mut(..length)) else {
                return Answer::Refused(Refusal::OutOfBounds);
            };
            return match access(&device.memory(), &request, MemoryOp::Read(room)) {
                Ok(_) => Answer::Data(room),
                Err(refusal) => Answer::Refused(refusal),
            };
        }
        Act::Look => MemoryOp::Look,
        Act::Write(data) => MemoryOp::Write(data),
        Act::WriteWord(word) => MemoryOp::WriteWord(word),
        Act::CompareSwap { compare, swap } => MemoryOp::CompareSwap { compare, swap },
        Act::FetchAdd(add) => MemoryOp::FetchAdd(add),
        Act::Flush { persistent, whole } => MemoryOp::Flush { persistent, whole },
    };
    answer(access(&device.memory(), &request, op))
}

/// The domain whose file this is, on the interface of this index.
fn domain(device: &Device, interface: u32, file: OwnedFd) -> Option<XrcDomain> {
    let file = File::from(file).metadata().ok()?;
    let inode: Inode = (file.dev(), file.ino());
    (device.net().interface().index() == interface).then(|| device.xrc_srqs().client().domain_of(inode))?
}

#[cfg(test)]
mod tests {
    use urxe_engine::{FrameCompletion, Instant, WcStatus};
    use urxe_wire::Lid;

    use super::*;

    #[test]
    fn a_process_tells_no_more_bytes_than_the_buffers_hold() {
        let told = |opcode, byte_len| {
            let cqe = Cqe {
                wr_id: 0,
                status: WcStatus::Success,
                opcode,
                qpn: Qpn::new(1),
                byte_len,
                imm: None,
                invalidated: None,
                at: Instant::default(),
                src_qp: Qpn::new(2),
                solicited: false,
                grh: None,
                slid: Lid::NONE,
                frame: FrameCompletion::default(),
                refusal: None,
            };
            bounded(cqe, 100).byte_len
        };
        assert_eq!([99, 100, 101, u32::MAX].map(|length| told(WcOpcode::Recv, length)), [99, 100, 100, 100]);
        assert_eq!(told(WcOpcode::RecvRdmaWithImm, 4096), 4096);
    }
}
