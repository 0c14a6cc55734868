//! Asking other processes for what belongs to their XRC SRQs.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use urxe_engine::{AccessRequest, Accessor, Cqe, Key, MemoryOp, Pd, RecvWr, Refusal, Sge, SgeList, XrcDomain};
use urxe_net::cancellation::CancelGuard;
use urxe_net::qpn_registry::block_of;
use urxe_net::{Channel, KeptFile, Port};
use urxe_wire::Qpn;

use super::message::{self, Act, Answer, Inode, Request, Wqe};
use crate::lock;
use crate::progress::tuning::TUNING;

/// The bit that numbers of protection domains of other processes have, and ours never.
const REMOTE: u32 = 1 << 31;

/// Whether a protection domain is of another process.
pub const fn is_remote(pd: Pd) -> bool {
    pd.0 & REMOTE != 0
}

/// Why there is no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Failure {
    /// The owner is gone, or will not have us.
    Gone,
    /// The owner has not answered an earlier request yet; the new one was not sent.
    Silent,
    /// The owner did not answer in time; it may still execute the request.
    Unsure,
}

/// The XRC domains of files that this process has opened on a device, and who else has SRQs in them.
#[derive(Debug)]
pub struct Client {
    port: Arc<Port>,
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    domains: HashMap<XrcDomain, (Inode, Arc<KeptFile>)>,
    /// By domain and block of numbers.
    owners: HashMap<(XrcDomain, u16), Arc<Owner>>,
    /// By what stands for its protection domain.
    srqs: HashMap<Pd, Arc<RemoteSrq>>,
    found: HashMap<(XrcDomain, Qpn), Pd>,
    last_pd: u32,
}

impl Client {
    pub(crate) fn new(port: &Arc<Port>) -> Self {
        Self { port: Arc::clone(port), tables: Mutex::default() }
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        lock(&self.tables)
    }

    /// Shares a domain with whoever else has this file.
    ///
    /// # Errors
    /// `EMFILE` or `ENFILE` if the file cannot be kept open; the domain is not shared then.
    pub fn join(&self, domain: XrcDomain, inode: Inode, file: BorrowedFd<'_>) -> io::Result<()> {
        let file = Arc::new(self.port.keep_file(file)?);
        self.tables().domains.insert(domain, (inode, file));
        Ok(())
    }

    /// Stops sharing a domain.
    pub fn leave(&self, domain: XrcDomain) {
        let mut tables = self.tables();
        tables.domains.remove(&domain);
        tables.owners.retain(|(of, _), _| *of != domain);
        tables.forget(|srq| srq.domain == domain);
    }

    /// Whether others may have a part in a domain.
    pub fn is_shared(&self, domain: XrcDomain) -> bool {
        self.tables().domains.contains_key(&domain)
    }

    /// The domain of a file.
    pub(super) fn domain_of(&self, inode: Inode) -> Option<XrcDomain> {
        self.tables().domains.iter().find(|(_, (of, _))| *of == inode).map(|(domain, _)| *domain)
    }

    /// The SRQ of that number in the other processes' parts of `domain`. One whose owner does not answer now may be
    /// there: it has no receive WQEs then.
    pub fn find(&self, domain: XrcDomain, number: Qpn) -> Option<Arc<RemoteSrq>> {
        if self.port.owns_qpn(number) {
            return None;
        }
        // An owner may have ended since it was asked last, and another process, or the same once more, have its numbers.
        let known = self.tables().owners.get(&(domain, block_of(number))).cloned();
        let answer = known.map(|owner| (owner.has(number), owner));
        let (answer, owner) = match answer {
            Some((answer, owner)) if answer != Err(Failure::Gone) => (answer, owner),
            _ => {
                let owner = self.call(domain, number)?;
                (owner.has(number), owner)
            }
        };
        match answer {
            Ok(true) | Err(Failure::Silent | Failure::Unsure) => Some(self.tables().srq(domain, number, &owner)),
            Ok(false) | Err(Failure::Gone) => None,
        }
    }

    /// Connects to the process that owns the block of `number`.
    //= spec/hosts.md#net-009
    //# Processes of one user that open the same file on the same interface MUST share its XRC domain.
    fn call(&self, domain: XrcDomain, number: Qpn) -> Option<Arc<Owner>> {
        let (_, file) = self.tables().domains.get(&domain).cloned()?;
        let _guard = CancelGuard::new();
        let channel = self.port.connect(number).ok()?;
        let join = Request::Join { interface: self.port.interface().index() }.emit();
        channel.send_file(join.head(), &file).ok()?;
        let owner = Arc::new(Owner { channel, state: Mutex::new(State::new()) });
        let mut tables = self.tables();
        // What was reached by an earlier connection is not there any more.
        tables.forget(|srq| srq.domain == domain && block_of(srq.number) == block_of(number));
        tables.owners.insert((domain, block_of(number)), Arc::clone(&owner));
        Some(owner)
    }

    /// Reads or writes memory of another process.
    ///
    /// # Errors
    /// The refusal of that process; [`Refusal::Silent`] if it does not answer in time, [`Refusal::Vanished`] if it has ended, or may have
    /// executed an atomic whose answer is lost.
    pub fn access(&self, request: &AccessRequest, op: &mut MemoryOp<'_>) -> Result<u64, Refusal> {
        let (Accessor::Local(pd) | Accessor::Remote(pd, _)) = request.by;
        let srq = self.tables().srqs.get(&pd).cloned();
        srq.map_or(Err(Refusal::Vanished), |srq| srq.access(request, op))
    }

    /// Unbinds a memory window of another process.
    ///
    /// # Errors
    /// The refusal of that process; [`Refusal::Vanished`] if it has ended or does not answer in time.
    pub fn invalidate(&self, pd: Pd, qpn: Qpn, key: Key) -> Result<(), Refusal> {
        let srq = self.tables().srqs.get(&pd).cloned().ok_or(Refusal::Vanished)?;
        // What is invalidated cannot be so once more.
        let done = srq.owner.done(&Request::Invalidate { srq: srq.number, qpn, key });
        done.unwrap_or(Err(Refusal::Vanished)).map(drop)
    }
}

impl Tables {
    fn forget(&mut self, which: impl Fn(&RemoteSrq) -> bool) {
        self.srqs.retain(|_, srq| !which(srq));
        let Self { srqs, found, .. } = self;
        found.retain(|_, pd| srqs.contains_key(pd));
    }

    /// The SRQ, the same as before if it was found before.
    fn srq(&mut self, domain: XrcDomain, number: Qpn, owner: &Arc<Owner>) -> Arc<RemoteSrq> {
        let known = self.found.get(&(domain, number)).and_then(|pd| self.srqs.get(pd));
        if let Some(known) = known.filter(|srq| Arc::ptr_eq(&srq.owner, owner)) {
            return Arc::clone(known);
        }
        self.last_pd = (self.last_pd + 1) & !REMOTE;
        let pd = Pd(self.last_pd | REMOTE);
        let srq = Arc::new(RemoteSrq { domain, number, pd, owner: Arc::clone(owner) });
        self.srqs.insert(pd, Arc::clone(&srq));
        self.found.insert((domain, number), pd);
        srq
    }
}

/// An XRC SRQ of another process.
#[derive(Debug)]
pub struct RemoteSrq {
    domain: XrcDomain,
    number: Qpn,
    /// Stands for its protection domain.
    pd: Pd,
    owner: Arc<Owner>,
}

impl RemoteSrq {
    /// Returns the placeholder for the SRQ's protection domain, which is in another process.
    pub const fn pd(&self) -> Pd {
        self.pd
    }

    /// Takes a receive WQE. To the engine it is one buffer from address 0 on, whose key is the WQE's number: where its
    /// bytes go is the owner's business. None also if nobody answers.
    pub fn take(&self) -> Option<RecvWr> {
        let take = |answer: Answer<'_>| match answer {
            Answer::Taken { wqe, room } => Some((wqe.0, room)),
            _ => None,
        };
        let (number, room) = self.owner.ask(&Request::Take { srq: self.number }, take).ok().flatten()?;
        let buffer = Sge { addr: 0, length: room, l_key: number };
        Some(RecvWr { wr_id: number.into(), buffers: SgeList::new(&[buffer]) })
    }

    /// Completes a WQE that was taken.
    pub fn complete(&self, cqe: Cqe) {
        if let Ok(number) = u32::try_from(cqe.wr_id) {
            self.owner.tell(&Request::Complete { wqe: Wqe(number), cqe });
        }
    }

    fn access(&self, request: &AccessRequest, op: &mut MemoryOp<'_>) -> Result<u64, Refusal> {
        let (act, read) = Act::of(op);
        let message = match (request.by, act) {
            (Accessor::Remote(_, qpn), act) => Request::Access { srq: self.number, qpn, range: request.into(), act },
            (Accessor::Local(_), Act::Write(data)) => {
                Request::Scatter { wqe: Wqe(request.key.0), offset: request.va, data }
            }
            // Nothing else is done with the WQEs of others.
            (Accessor::Local(_), _) => return Err(Refusal::Access),
        };
        let once = matches!(act, Act::CompareSwap { .. } | Act::FetchAdd(_));
        let failed = |failure| match failure {
            Failure::Gone => Refusal::Vanished,
            Failure::Unsure if once => Refusal::Vanished,
            Failure::Silent | Failure::Unsure => Refusal::Silent,
        };
        let Some(read) = read else { return self.owner.done(&message).unwrap_or_else(|failure| Err(failed(failure))) };
        let copy = |answer: Answer<'_>| match answer {
            Answer::Data(data) if data.len() == read.len() => {
                read.copy_from_slice(data);
                Ok(0)
            }
            Answer::Refused(refusal) => Err(refusal),
            _ => Err(Refusal::Vanished),
        };
        self.owner.ask(&message, copy).unwrap_or_else(|failure| Err(failed(failure)))
    }
}

/// A process that has SRQs of a domain.
#[derive(Debug)]
struct Owner {
    channel: Channel,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Answers that did not come in time.
    overdue: u32,
    is_gone: bool,
    buffer: Box<[u8]>,
}

impl State {
    fn new() -> Self {
        Self { overdue: 0, is_gone: false, buffer: vec![0; message::LENGTH].into() }
    }
}

impl Owner {
    /// Whether the owner has this SRQ.
    fn has(&self, srq: Qpn) -> Result<bool, Failure> {
        self.ask(&Request::Find { srq }, |answer| answer == Answer::Done(0))
    }

    /// Asks for something to be done.
    fn done(&self, request: &Request<'_>) -> Result<Result<u64, Refusal>, Failure> {
        let done = |answer: Answer<'_>| match answer {
            Answer::Done(found) => Ok(found),
            Answer::Refused(refusal) => Err(refusal),
            _ => Err(Refusal::Vanished),
        };
        self.ask(request, done)
    }

    /// Asks, and hands the answer to `then`.
    fn ask<T>(&self, request: &Request<'_>, then: impl FnOnce(Answer<'_>) -> T) -> Result<T, Failure> {
        let state = &mut *lock(&self.state);
        let result = self.exchange(state, request);
        let answer = result.and_then(|length| {
            let answer = state.buffer.get(..length).and_then(Answer::parse);
            answer.map(then).ok_or(Failure::Gone)
        });
        if matches!(answer, Err(Failure::Gone)) {
            self.give_up(state);
        }
        answer
    }

    /// Ends the connection: no request goes out on it any more.
    fn give_up(&self, state: &mut State) {
        state.is_gone = true;
        self.channel.shutdown();
    }

    /// Asks. The answer is in the buffer then, so many bytes.
    fn exchange(&self, state: &mut State, request: &Request<'_>) -> Result<usize, Failure> {
        let _guard = CancelGuard::new();
        if state.is_gone {
            return Err(Failure::Gone);
        }
        while state.overdue > 0 {
            let (length, _) =
                self.channel.receive(&mut state.buffer).map_err(|_| Failure::Gone)?.ok_or(Failure::Silent)?;
            state.overdue -= 1;
            // What is due to a message that was given up long ago: of the next one nothing is known here.
            if let Some(Answer::Taken { wqe, .. }) = state.buffer.get(..length).and_then(Answer::parse) {
                self.send(&Request::GiveBack { wqe })?;
            }
        }
        self.send(request)?;
        let until = Instant::now() + TUNING.xrc_answer;
        match self.channel.receive_until(&mut state.buffer, until) {
            Ok(Some(length)) => Ok(length),
            Ok(None) => {
                state.overdue += 1;
                Err(Failure::Unsure)
            }
            Err(_) => Err(Failure::Gone),
        }
    }

    /// Says what is not answered.
    fn tell(&self, request: &Request<'_>) {
        let state = &mut *lock(&self.state);
        if !state.is_gone && self.send(request).is_err() {
            self.give_up(state);
        }
    }

    /// Sends a request. The owner has few unread messages, so there is room for one more.
    fn send(&self, request: &Request<'_>) -> Result<(), Failure> {
        let parts = request.emit();
        self.channel.send([parts.head(), parts.payload]).map_err(|_| Failure::Gone)
    }
}
