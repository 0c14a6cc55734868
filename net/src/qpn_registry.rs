//! Registry of QPNs on this host: blocks of numbers owned by abstract unix names.
//!
//! A block is 256 numbers, the low byte of a QPN. The process that holds the datagram socket named after the block owns
//! it, and that socket is the mailbox for packets that reached another process. 256 because a mailbox is a descriptor,
//! and a program with ten thousand queue pairs should need tens of those, while 65 534 blocks leave a thousand
//! processes enough that a random block is free at the first attempt.

use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr as UnixAddr;
use std::sync::{Arc, Mutex};

use urxe_wire::Qpn;

use crate::error::PortError;
use crate::ipc::{NAME_PREFIX, bind};
use crate::mutex::lock;
use crate::shm::{self, Purpose};
use crate::sys::epoll_key::EpollKey;
use crate::sys::fd::{Fd, FdSet};
use crate::sys::random::{random_below, random_u16};

/// Numbers in a block.
const BLOCK_SIZE: u32 = 256;
/// Blocks in all; the first holds QP0 and QP1, the last the multicast QPN, and neither is given out.
const BLOCKS: usize = 1 << 16;
/// Numbers that must be free for one to be given out: a number rests while this many others are used before it.
const RESERVE: usize = 128;

/// The block a QPN lies in.
pub fn block_of(qpn: Qpn) -> u16 {
    let [_, high, middle, _] = qpn.get().to_be_bytes();
    u16::from_be_bytes([high, middle])
}

/// The mailbox of a block.
//= spec/hosts.md#net-006
//# Nothing MUST be left behind by a process that ends, even by SIGKILL.
pub(crate) fn mailbox_name(block: u16) -> io::Result<UnixAddr> {
    UnixAddr::from_abstract_name(format!("{NAME_PREFIX}/qpn/{block:04x}"))
}

/// The QPNs of a port.
#[derive(Debug)]
pub(crate) struct Registry {
    /// Bit per block, set when it is ours.
    owned: Box<[AtomicU64]>,
    pool: Mutex<Pool>,
    limit: usize,
    /// Purpose of the listeners of blocks, to which processes of this host connect with shared memory.
    purpose: Purpose,
}

#[derive(Debug, Default)]
struct Pool {
    mailboxes: Vec<Fd>,
    listeners: Vec<(u16, Fd)>,
    /// Free numbers in the order in which they will be given out: the longest unused first.
    free: VecDeque<Qpn>,
}

impl Registry {
    /// A registry of at most `limit` blocks, none yet.
    pub(crate) fn new(limit: usize, shared: bool) -> Self {
        let owned = (0..BLOCKS / 64).map(|_| AtomicU64::new(0)).collect();
        Self { owned, pool: Mutex::new(Pool::default()), limit, purpose: Purpose::of(shared) }
    }

    /// Largest number of QPNs that it gives out.
    pub(crate) fn most(&self) -> usize {
        self.limit * BLOCK_SIZE as usize
    }

    /// Whether the block is this port's.
    pub(crate) fn owns(&self, block: u16) -> bool {
        let (word, bit) = (usize::from(block) / 64, block % 64);
        self.owned.get(word).is_some_and(|word| word.load(Ordering::Acquire) >> bit & 1 == 1)
    }

    /// A number nobody on this host has. A new block is taken when too few numbers have rested; its mailbox is watched
    /// under the key that `key` makes of its descriptor.
    //= spec/hosts.md#net-004
    //# Queue pair numbers MUST be unique on a host and 0 and 1 never be given.
    pub(crate) fn alloc(&self, fds: &Arc<FdSet>, key: fn(RawFd) -> u64) -> Result<Qpn, PortError> {
        let mut pool = lock(&self.pool);
        if pool.free.len() <= RESERVE {
            match self.take_block(&mut pool, fds, key) {
                // Numbers that have rested less are better than none.
                Err(_) if !pool.free.is_empty() => {}
                other => other?,
            }
        }
        pool.free.pop_front().ok_or(PortError::QpnsExhausted)
    }

    /// Closes the listener with this descriptor.
    pub(crate) fn close_listener(&self, listener: RawFd) {
        let mut pool = lock(&self.pool);
        pool.listeners.retain(|(_, other)| other.as_raw_fd() != listener);
    }

    /// The block whose listener has this descriptor.
    pub(crate) fn block_of_listener(&self, listener: RawFd) -> Option<u16> {
        let pool = lock(&self.pool);
        pool.listeners.iter().find(|(_, other)| other.as_raw_fd() == listener).map(|(block, _)| *block)
    }

    /// Gives a number back.
    pub(crate) fn free(&self, qpn: Qpn) {
        let mut pool = lock(&self.pool);
        debug_assert!(self.owns(block_of(qpn)) && !pool.free.contains(&qpn), "{qpn} was not given out");
        pool.free.push_back(qpn);
    }

    /// Takes a random block, and mixes its numbers.
    fn take_block(&self, pool: &mut Pool, fds: &Arc<FdSet>, key: fn(RawFd) -> u64) -> Result<(), PortError> {
        const WHAT: &str = "open a mailbox socket";
        if pool.mailboxes.len() >= self.limit {
            return Err(PortError::QpnsExhausted);
        }
        // With 16 000 blocks of the host taken, each attempt fails one time in four.
        for _ in 0..256 {
            let block = random_u16();
            if block == 0 || block == u16::MAX {
                continue;
            }
            let name = mailbox_name(block).map_err(|e| PortError::os(WHAT, e))?;
            let socket = match bind::datagram(&name) {
                Ok(socket) => socket,
                Err(e) if e.kind() == io::ErrorKind::AddrInUse => continue,
                Err(e) => return Err(PortError::os(WHAT, e)),
            };
            let mailbox = fds.adopt(socket).map_err(|e| PortError::os(WHAT, e))?;
            let raw = mailbox.as_raw_fd();
            fds.watch(raw, key(raw)).map_err(|e| PortError::os(WHAT, e))?;
            pool.mailboxes.push(mailbox);
            // Without one, others send by UDP.
            pool.listeners.extend(open_listener(fds, block, self.purpose).map(|listener| (block, listener)));
            if let Some(word) = self.owned.get(usize::from(block) / 64) {
                word.fetch_or(1 << (block % 64), Ordering::Release);
            }
            let first = u32::from(block) << 8;
            let mut numbers: Vec<Qpn> = (0..BLOCK_SIZE).map(|low| Qpn::new(first | low)).collect();
            for i in (1..BLOCK_SIZE).rev() {
                numbers.swap(i as usize, random_below(i + 1) as usize);
            }
            // Fresh numbers go before those that were used.
            for number in numbers {
                pool.free.push_front(number);
            }
            return Ok(());
        }
        Err(PortError::QpnsExhausted)
    }
}

/// Listens on the socket of a block, and has it watched.
fn open_listener(fds: &Arc<FdSet>, block: u16, purpose: Purpose) -> Option<Fd> {
    let listener = fds.adopt(shm::listen(block, purpose).ok()?).ok()?;
    let raw = listener.as_raw_fd();
    fds.watch(raw, EpollKey::RingListener(raw).pack()).ok()?;
    Some(listener)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::os::unix::net::UnixDatagram;

    fn alloc(registry: &Registry, fds: &Arc<FdSet>) -> Qpn {
        registry.alloc(fds, |_| 0).unwrap()
    }

    //= spec/hosts.md#net-004
    //= type=test
    //# Queue pair numbers MUST be unique on a host and 0 and 1 never be given.
    #[test]
    fn numbers_are_unique_owned_and_never_special() {
        let (registry, fds) = (Registry::new(8, false), FdSet::new().unwrap());
        let numbers: Vec<Qpn> = (0..1000).map(|_| alloc(&registry, &fds)).collect();
        assert_eq!(numbers.iter().collect::<HashSet<_>>().len(), numbers.len());
        for qpn in &numbers {
            assert!(registry.owns(block_of(*qpn)));
            assert!(![0, 0xFFFF].contains(&block_of(*qpn)));
        }
    }

    #[test]
    fn numbers_are_not_in_sequence() {
        let (registry, fds) = (Registry::new(8, false), FdSet::new().unwrap());
        let numbers: Vec<Qpn> = (0..100).map(|_| alloc(&registry, &fds)).collect();
        let successors = numbers.windows(2).filter(|w| w[1].get() == w[0].get() + 1).count();
        assert!(successors < 20, "{successors} of 99 numbers follow their predecessor");
    }

    #[test]
    fn a_freed_number_rests() {
        let (registry, fds) = (Registry::new(8, false), FdSet::new().unwrap());
        let first = alloc(&registry, &fds);
        registry.free(first);
        for _ in 0..RESERVE {
            let next = alloc(&registry, &fds);
            assert_ne!(next, first);
            registry.free(next);
        }
    }

    //= spec/hosts.md#net-004
    //= type=test
    //# Queue pair numbers MUST be unique on a host and 0 and 1 never be given.
    #[test]
    fn two_registries_have_different_blocks_and_the_limit_holds() {
        let (a, b, fds) = (Registry::new(1, false), Registry::new(1, false), FdSet::new().unwrap());
        let mine: HashSet<Qpn> = (0..BLOCK_SIZE).map(|_| alloc(&a, &fds)).collect();
        assert_eq!(mine.len(), BLOCK_SIZE as usize);
        assert!(matches!(a.alloc(&fds, |_| 0), Err(PortError::QpnsExhausted)));
        assert!(!mine.contains(&alloc(&b, &fds)));
    }

    //= spec/hosts.md#net-006
    //= type=test
    //# Nothing MUST be left behind by a process that ends, even by SIGKILL.
    #[test]
    fn a_name_lives_as_long_as_its_socket() {
        let fds = FdSet::new().unwrap();
        let registry = Registry::new(1, false);
        let block = block_of(alloc(&registry, &fds));
        let name = mailbox_name(block).unwrap();
        let stranger = UnixDatagram::unbound().unwrap();
        stranger.connect_addr(&name).unwrap();
        drop(registry);
        assert!(stranger.connect_addr(&name).is_err());
    }
}
