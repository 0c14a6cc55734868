//! The handshake of a ring: the sender hands the receiver the ring's memory.
//!
//! The owner of a block of QPNs listens at an abstract name made of the block, as its mailbox has one. A sender connects,
//! checks whose socket answers, and sends one message with the ring's addresses and key and the memory's descriptor. There is no
//! answer to wait for: an owner that refuses the ring closes the connection.
//!
//! A message may have an offer behind that: the version of a table ([`direct::VERSION`]), and of that version where the table is in
//! the sender's shared file, whose descriptor comes too. The processes may be of different builds, so a receiver that knows another
//! version takes the ring alone, and requests go by packets.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use socket2::Socket;

use super::segment::Segment;
use crate::direct::{self, Offer};
use crate::ipc::header::{HEADER_LEN, Header};
use crate::ipc::unix;
use crate::sys::{scope_id, with_port};

/// A header and the ring's key.
const HANDSHAKE_LEN: usize = HEADER_LEN + 8;
/// Version of an offered table, and where it is in the sender's shared file.
const OFFER_LEN: usize = 16;
/// Room for a handshake and an offer of any version.
const MOST: usize = HANDSHAKE_LEN + 256;

/// Purpose of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Packets, and the last ACKs.
    Packets,
    /// The last ACKs alone: packets go by UDP.
    Acks,
}

impl Purpose {
    /// Purpose of the rings that a port takes: `shared` says that it takes packets through shared memory.
    pub(crate) const fn of(shared: bool) -> Self {
        if shared { Self::Packets } else { Self::Acks }
    }

    /// The part of a listener's name that says so.
    const fn kind(self) -> &'static str {
        match self {
            Self::Packets => "ring",
            Self::Acks => "acks",
        }
    }
}

/// Listens for the rings of a block.
pub(crate) fn listen(block: u16, purpose: Purpose) -> io::Result<Socket> {
    unix::listen_for_files(purpose.kind(), block)
}

/// Connects to the owner of a block. Fails if none takes such rings, or another user would.
pub(super) fn connect(block: u16, purpose: Purpose) -> io::Result<Socket> {
    unix::connect(purpose.kind(), block)
}

/// Accepts a connection of the same user; others are closed. `Ok(None)`: there is none.
pub(super) fn accept(listener: RawFd) -> io::Result<Option<OwnedFd>> {
    unix::accept(listener)
}

/// Whether an address is one of this host's: a process can bind to it.
#[must_use]
pub fn is_own_address(address: SocketAddr) -> bool {
    UdpSocket::bind(with_port(address, 0)).is_ok()
}

/// Addresses and key of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handshake {
    /// The sender's address and the UDP port it would use.
    pub(super) from: SocketAddr,
    /// The receiver's address.
    pub(super) to: SocketAddr,
    pub(super) tclass: u8,
    pub(super) hop_limit: u8,
    /// The ring's.
    pub(super) key: u64,
}

impl Handshake {
    fn emit(&self) -> [u8; HANDSHAKE_LEN] {
        let Self { from, to, tclass, hop_limit, key } = *self;
        let local = (to.ip(), scope_id(to));
        let header = Header { local, peer: from, tclass, hop_limit, segment: 1, first: 0, learn: false };
        let mut bytes = [0; HANDSHAKE_LEN];
        bytes[..HEADER_LEN].copy_from_slice(&header.emit());
        bytes[HEADER_LEN..].copy_from_slice(&key.to_le_bytes());
        bytes
    }

    fn parse(bytes: &[u8; HANDSHAKE_LEN], port: u16) -> Option<Self> {
        let (header, key) = bytes.split_first_chunk::<HEADER_LEN>()?;
        let Header { local: (ip, scope), peer, tclass, hop_limit, .. } = Header::parse(header)?;
        let to = crate::sys::socket_address(ip, port, scope);
        let key = u64::from_le_bytes(*key.first_chunk()?);
        (key % 2 == 1).then_some(Self { from: peer, to, tclass, hop_limit, key })
    }
}

/// Hands a ring over, without waiting, and the sender's shared file if it offers one.
pub(super) fn send(fd: RawFd, handshake: &Handshake, memory: &OwnedFd, offer: Option<&Offer>) -> io::Result<()> {
    let Some((offer, file)) = offer.and_then(|offer| Some((offer, offer.file.file().ok()?))) else {
        return unix::send_file(fd, &handshake.emit(), memory.as_raw_fd());
    };
    let bytes = [&handshake.emit()[..], &emit_offer(direct::VERSION, offer.at)].concat();
    unix::send_files(fd, &bytes, &[memory.as_fd(), file])
}

fn emit_offer(version: u64, table: u64) -> [u8; OFFER_LEN] {
    let mut bytes = [0; OFFER_LEN];
    bytes[..8].copy_from_slice(&version.to_le_bytes());
    bytes[8..].copy_from_slice(&table.to_le_bytes());
    bytes
}

/// Returns where the table is, if it is of the version that this build knows.
fn parse_offer(bytes: &[u8]) -> Option<u64> {
    let (version, table) = <&[u8; OFFER_LEN]>::try_from(bytes).ok()?.split_first_chunk()?;
    (u64::from_le_bytes(*version) == direct::VERSION).then_some(u64::from_le_bytes(*table.first_chunk()?))
}

/// A shared file that came with a ring, and where the table is in there.
#[derive(Debug)]
pub(super) struct Offered {
    pub(super) file: OwnedFd,
    pub(super) table: u64,
}

/// Takes a handshake, its memory, and the sender's shared file. `Ok(None)`: not there yet.
pub(super) fn receive(fd: RawFd) -> io::Result<Option<(Handshake, Segment, Option<Offered>)>> {
    let mut bytes = [0_u8; MOST];
    let Some((length, [memory, file])) = unix::receive_files(fd, &mut bytes)? else { return Ok(None) };
    let bad = || io::Error::from(io::ErrorKind::InvalidData);
    let (handshake, offer) =
        bytes.get(..length).and_then(<[u8]>::split_first_chunk::<HANDSHAKE_LEN>).ok_or_else(bad)?;
    let handshake = Handshake::parse(handshake, urxe_wire::ROCE_PORT).ok_or_else(bad)?;
    let memory = Segment::open(memory.ok_or_else(bad)?.as_fd())?;
    let offered = file.zip(parse_offer(offer)).map(|(file, table)| Offered { file, table });
    Ok(Some((handshake, memory, offered)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    use socket2::{Domain, Type};

    fn handshake() -> Handshake {
        Handshake {
            from: "127.0.0.1:50000".parse().unwrap(),
            to: "127.0.0.1:4791".parse().unwrap(),
            tclass: 0x2A,
            hop_limit: 64,
            key: 0x1234_5678_9ABC_DEF1,
        }
    }

    #[test]
    fn a_handshake_is_read_as_it_was_written() {
        let v6 = Handshake {
            from: "[fe80::2%9]:65535".parse().unwrap(),
            to: "[fe80::1%9]:4791".parse().unwrap(),
            ..handshake()
        };
        for handshake in [handshake(), v6] {
            assert_eq!(Handshake::parse(&handshake.emit(), 4791), Some(handshake));
        }
        // A stamp of 0 is what a new ring is full of.
        assert_eq!(Handshake::parse(&Handshake { key: 2, ..handshake() }.emit(), 4791), None);
    }

    proptest! {
        #[test]
        fn any_damaged_offer_is_parsed_or_refused(at in 0..HANDSHAKE_LEN, value: u8) {
            let mut bytes = handshake().emit();
            bytes[at] = value;
            if let Some(parsed) = Handshake::parse(&bytes, 4791) {
                prop_assert_eq!(Handshake::parse(&parsed.emit(), 4791), Some(parsed));
            }
        }
    }

    /// A connected pair, as a listener gives it.
    fn pair() -> (Socket, Socket) {
        Socket::pair(Domain::UNIX, Type::SEQPACKET.nonblocking(), None).unwrap()
    }

    fn memory(bytes: usize, seals: SealFlags) -> OwnedFd {
        let file = memfd_create(c"test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, bytes as u64).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        file
    }

    #[test]
    fn a_ring_is_handed_over() {
        let (a, b) = pair();
        assert!(receive(b.as_raw_fd()).unwrap().is_none());
        let (_, memory) = Segment::create().unwrap();
        send(a.as_raw_fd(), &handshake(), &memory, None).unwrap();
        assert_eq!(receive(b.as_raw_fd()).unwrap().unwrap().0, handshake());
    }

    #[test]
    fn a_shared_file_comes_with_a_ring() {
        let (a, b) = pair();
        let (_, memory) = Segment::create().unwrap();
        let offer = Offer { file: std::sync::Arc::new(direct::SharedFile::create().unwrap()), at: 65536 };
        send(a.as_raw_fd(), &handshake(), &memory, Some(&offer)).unwrap();
        let (came, _, offered) = receive(b.as_raw_fd()).unwrap().unwrap();
        let offered = offered.unwrap();
        assert_eq!((came, offered.table), (handshake(), 65536));
        let fds = crate::sys::fd::FdSet::new().unwrap();
        let connection = std::sync::Arc::new(fds.adopt(b).unwrap());
        let import = |file: &OwnedFd, table| direct::Import::new(file.as_fd(), table, &connection, &[]);
        assert!(import(&offered.file, offered.table).is_ok_and(|import| import.look()));
        // Neither another file nor a table that would end behind it.
        assert!(import(&offered.file, u64::MAX - 127).is_err());
        assert!(import(&memory, 65536).is_err());
        let import = import(&offered.file, 65536).unwrap();
        drop(a);
        assert!(!import.look(), "its sender has gone");
    }

    /// A process of another build may mean something else by the words of its table.
    #[test]
    fn a_table_of_another_version_is_left_alone() {
        let (a, b) = pair();
        let (_, memory) = Segment::create().unwrap();
        let file = direct::SharedFile::create().unwrap();
        let offer = |version| emit_offer(version, 65536).to_vec();
        let longer = [offer(direct::VERSION), vec![0; 8]].concat();
        // The last is the offer of builds that told no version.
        let others = [offer(direct::VERSION + 1), offer(0), longer, vec![7; 256], 65536_u64.to_le_bytes().to_vec()];
        for (other, is_taken) in others.map(|other| (other, false)).into_iter().chain([(offer(direct::VERSION), true)])
        {
            let bytes = [&handshake().emit()[..], &other].concat();
            unix::send_files(a.as_raw_fd(), &bytes, &[memory.as_fd(), file.file().unwrap()]).unwrap();
            let (came, _, offered) = receive(b.as_raw_fd()).unwrap().unwrap();
            assert_eq!((came, offered.is_some()), (handshake(), is_taken), "{other:?}");
        }
    }

    //= spec/hosts.md#net-021
    //= type=test
    //# What another process writes into shared memory MUST do no more than packets can.
    #[test]
    fn memory_that_might_vanish_or_is_none_is_refused() {
        let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        let whole = 4096 + super::super::ring::SIZE;
        let file = OwnedFd::from(tempfile(whole));
        for (what, refused) in [
            ("unsealed", memory(whole, SealFlags::empty())),
            ("may be cut short", memory(whole, SealFlags::GROW | SealFlags::SEAL)),
            ("too short", memory(4096, all)),
            ("read-only", memory(whole, all | SealFlags::WRITE)),
            ("a file", file),
            ("a socket", OwnedFd::from(pair().0)),
        ] {
            let (a, b) = pair();
            send(a.as_raw_fd(), &handshake(), &refused, None).unwrap();
            assert!(receive(b.as_raw_fd()).is_err(), "{what}");
        }
        // As it should be, so that the others were refused for what they say.
        let (a, b) = pair();
        send(a.as_raw_fd(), &handshake(), &memory(whole, all), None).unwrap();
        assert!(receive(b.as_raw_fd()).unwrap().is_some());
    }

    /// A file without a name.
    fn tempfile(bytes: usize) -> std::fs::File {
        let file = std::fs::File::options().read(true).write(true).custom_flags(libc::O_TMPFILE).open("/tmp").unwrap();
        file.set_len(bytes as u64).unwrap();
        file
    }

    use std::os::unix::fs::OpenOptionsExt;

    #[test]
    fn a_message_that_is_no_handshake_is_an_error() {
        let (a, b) = pair();
        a.send(b"good morning").unwrap();
        assert!(receive(b.as_raw_fd()).is_err());
        a.send(&handshake().emit()).unwrap();
        assert!(receive(b.as_raw_fd()).is_err(), "without memory");
        drop(a);
        assert!(receive(b.as_raw_fd()).is_err(), "hung up");
    }

    #[test]
    fn addresses_of_this_host() {
        for (address, own) in [("127.0.0.1:4791", true), ("127.9.9.9:4791", true), ("192.0.2.1:4791", false)] {
            assert_eq!(is_own_address(address.parse().unwrap()), own, "{address}");
        }
    }
}
