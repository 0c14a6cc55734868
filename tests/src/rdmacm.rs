//! librdmacm for tests: channels, ids and events, without queue pairs.
//!
//! The library is loaded when it is first used, not linked: the other tests see libibverbs alone, as programs without
//! librdmacm do.

use std::ffi::{CStr, c_int, c_void};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::RawFd;
use std::ptr;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use crate::verbs::{Errno, PATIENCE, is_readable};

/// `enum rdma_cm_event_type`, as far as tests see it.
pub mod kind {
    /// The address is known.
    pub const ADDR_RESOLVED: u32 = 0;
    /// Address not resolved.
    pub const ADDR_ERROR: u32 = 1;
    /// The route is known.
    pub const ROUTE_RESOLVED: u32 = 2;
    /// A peer asks for a connection.
    pub const CONNECT_REQUEST: u32 = 4;
    /// The peer has accepted (of ids without a queue pair).
    pub const CONNECT_RESPONSE: u32 = 5;
    /// The peer does not answer.
    pub const UNREACHABLE: u32 = 7;
    /// The peer has said no.
    pub const REJECTED: u32 = 8;
    /// The connection is there.
    pub const ESTABLISHED: u32 = 9;
    /// The connection has ended.
    pub const DISCONNECTED: u32 = 10;
    /// The device was taken out.
    pub const DEVICE_REMOVAL: u32 = 11;
}

/// Why a request was rejected: the status of [`kind::REJECTED`] (IBA 12.6.7.2, `enum ib_cm_rej_reason`).
pub mod reason {
    /// The peer waits no longer.
    pub const TIMEOUT: i32 = 4;
    /// The connection is not known.
    pub const INVALID_COMM_ID: i32 = 6;
    /// No listener has this service id.
    pub const INVALID_SERVICE_ID: i32 = 8;
    /// The application does not want to.
    pub const CONSUMER_DEFINED: i32 = 28;
}

const RDMA_PS_TCP: c_int = 0x0106;
const RDMA_PS_UDP: c_int = 0x0111;
/// How long resolving may take, in milliseconds.
const RESOLVE: c_int = 20_000;

/// `struct rdma_conn_param` (rdma_cma.h).
#[repr(C)]
struct ConnParam {
    private_data: *const c_void,
    private_data_len: u8,
    responder_resources: u8,
    initiator_depth: u8,
    flow_control: u8,
    retry_count: u8,
    rnr_retry_count: u8,
    srq: u8,
    qp_num: u32,
}

/// The start of `struct rdma_cm_id`, up to the addresses of its route.
#[repr(C)]
struct IdHead {
    verbs: *mut c_void,
    channel: *mut c_void,
    context: *mut c_void,
    qp: *mut c_void,
    source: [u8; 128],
    destination: [u8; 128],
}

/// The start of `struct rdma_cm_event`.
#[repr(C)]
struct RawEvent {
    id: *mut c_void,
    listen_id: *mut c_void,
    event: u32,
    status: c_int,
    conn: ConnParam,
}

macro_rules! library {
    ($($name:ident($($arg:ty),*) -> $result:ty;)*) => {
        struct Library { $($name: unsafe extern "C" fn($($arg),*) -> $result,)* }

        impl Library {
            fn load() -> Option<Self> {
                // SAFETY: a name; the library stays loaded.
                let library = unsafe { libc::dlopen(c"librdmacm.so.1".as_ptr(), libc::RTLD_NOW) };
                if library.is_null() {
                    return None;
                }
                let find = |name: &CStr| {
                    // SAFETY: a library that is loaded, and a name.
                    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
                    (!address.is_null()).then_some(address)
                };
                Some(Self {
                    $($name: {
                        let name = concat!(stringify!($name), "\0");
                        let address = find(CStr::from_bytes_with_nul(name.as_bytes()).ok()?)?;
                        // SAFETY: the function of this name has this signature (rdma_cma.h).
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) -> $result>(address) }
                    },)*
                })
            }
        }
    };
}

library! {
    rdma_create_event_channel() -> *mut RawFd;
    rdma_destroy_event_channel(*mut RawFd) -> ();
    rdma_create_id(*mut RawFd, *mut *mut c_void, *mut c_void, c_int) -> c_int;
    rdma_destroy_id(*mut c_void) -> c_int;
    rdma_bind_addr(*mut c_void, *const libc::sockaddr_in) -> c_int;
    rdma_listen(*mut c_void, c_int) -> c_int;
    rdma_resolve_addr(*mut c_void, *const libc::sockaddr_in, *const libc::sockaddr_in, c_int) -> c_int;
    rdma_resolve_route(*mut c_void, c_int) -> c_int;
    rdma_connect(*mut c_void, *mut ConnParam) -> c_int;
    rdma_accept(*mut c_void, *mut ConnParam) -> c_int;
    rdma_establish(*mut c_void) -> c_int;
    rdma_reject(*mut c_void, *const c_void, u8) -> c_int;
    rdma_disconnect(*mut c_void) -> c_int;
    rdma_get_cm_event(*mut RawFd, *mut *mut RawEvent) -> c_int;
    rdma_ack_cm_event(*mut RawEvent) -> c_int;
}

fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| Library::load().expect("librdmacm.so.1 (make setup)"))
}

fn check(returned: c_int) -> Result<(), Errno> {
    if returned == 0 { Ok(()) } else { Err(Errno::last()) }
}

fn sockaddr(address: SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::sa_family_t::try_from(libc::AF_INET).unwrap_or_default(),
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
        sin_zero: [0; 8],
    }
}

/// `port` of this machine.
pub fn loopback(port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)
}

/// Result of `rdma_get_cm_event(3)` on a channel that is not open, by a descriptor that its memory may still show.
pub fn ask_of_what_is_closed(mut fd: RawFd) -> Result<(), Errno> {
    let mut raw = ptr::null_mut::<RawEvent>();
    // SAFETY: a channel's only field (rdma_cma.h), and room for an event's address.
    check(unsafe { (library().rdma_get_cm_event)(&raw mut fd, &raw mut raw) })
}

/// An event channel. Ids are to be dropped before their channel.
pub struct Channel(*mut RawFd);

/// An `rdma_cm_id`.
pub struct Id(*mut c_void);

/// An event, taken and acknowledged.
pub struct Event {
    /// Id of the event; for a request, the new id, which has an owner now.
    pub id: Option<Id>,
    /// The [address](Id::address) of the id it is about.
    pub about: usize,
    /// A number of [`kind`].
    pub kind: u32,
    /// 0, a negative errno, or a [`reason`].
    pub status: i32,
    /// Private data of the peer's application.
    pub private_data: Vec<u8>,
}

impl Channel {
    /// `rdma_create_event_channel(3)`.
    pub fn new() -> Result<Self, Errno> {
        // SAFETY: no arguments.
        let channel = unsafe { (library().rdma_create_event_channel)() };
        if channel.is_null() { Err(Errno::last()) } else { Ok(Self(channel)) }
    }

    /// Readable while there are events.
    pub fn fd(&self) -> RawFd {
        // SAFETY: the channel's only field (rdma_cma.h).
        unsafe { *self.0 }
    }

    /// `rdma_create_id(3)`, in the port space TCP.
    pub fn id(&self) -> Result<Id, Errno> {
        self.id_in(RDMA_PS_TCP)
    }

    fn id_in(&self, port_space: c_int) -> Result<Id, Errno> {
        let mut id = ptr::null_mut();
        // SAFETY: room for the id.
        check(unsafe { (library().rdma_create_id)(self.0, &raw mut id, ptr::null_mut(), port_space) })?;
        Ok(Id(id))
    }

    /// The next event, within `patience`.
    pub fn next_within(&self, patience: Duration) -> Result<Event> {
        ensure!(is_readable(self.fd(), patience), "no event within {patience:?}");
        let mut raw = ptr::null_mut::<RawEvent>();
        // SAFETY: room for the event's address.
        check(unsafe { (library().rdma_get_cm_event)(self.0, &raw mut raw) })?;
        // SAFETY: an event, until it is acknowledged; private data is what its length says.
        let event = unsafe {
            let RawEvent { id, event, status, ref conn, .. } = *raw;
            let (data, len) = (conn.private_data.cast::<u8>(), usize::from(conn.private_data_len));
            let bytes = if data.is_null() { &[][..] } else { std::slice::from_raw_parts(data, len) };
            let new = (event == kind::CONNECT_REQUEST).then_some(id).map(Id);
            Event { id: new, about: id as usize, kind: event, status, private_data: bytes.to_vec() }
        };
        // SAFETY: taken above, and not used any more.
        check(unsafe { (library().rdma_ack_cm_event)(raw) })?;
        Ok(event)
    }

    /// A thread waits for an event and is cancelled.
    pub fn wait_and_be_cancelled(&self) -> Result<()> {
        type Start = extern "C" fn(*mut c_void) -> *mut c_void;
        let (mut thread, mut result) = (0, ptr::null_mut());
        // SAFETY: a start routine but for how it may end, and a channel that outlives the thread.
        unsafe {
            let start: Start = std::mem::transmute::<*const (), Start>(wait_for_ever as *const ());
            let created = libc::pthread_create(&raw mut thread, ptr::null(), start, self.0.cast());
            ensure!(created == 0, "pthread_create: {created}");
            // Most likely it waits by now; where it is cancelled makes no difference.
            std::thread::sleep(Duration::from_millis(20));
            ensure!(
                libc::pthread_cancel(thread) == 0 && libc::pthread_join(thread, &raw mut result) == 0,
                "cancelling"
            );
        }
        // PTHREAD_CANCELED
        ensure!(result.addr() == usize::MAX, "the thread returned");
        Ok(())
    }

    /// The next event, which must be of this kind and without error.
    pub fn expect(&self, kind: u32) -> Result<Event> {
        let event = self.next_within(PATIENCE)?;
        ensure!(event.kind == kind && event.status == 0, "event {} (status {})", event.kind, event.status);
        Ok(event)
    }

    /// An id that listens at an address.
    pub fn listen(&self, address: SocketAddrV4, backlog: c_int) -> Result<Id, Errno> {
        let id = self.id()?;
        id.bind(address)?;
        id.listen(backlog)?;
        Ok(id)
    }

    /// An id that listens for datagrams at an address.
    pub fn listen_for_datagrams(&self, address: SocketAddrV4) -> Result<Id, Errno> {
        let id = self.id_in(RDMA_PS_UDP)?;
        id.bind(address)?;
        id.listen(1)?;
        Ok(id)
    }

    /// An id that has asked for a connection: its answer is the next event.
    pub fn connect(&self, to: SocketAddrV4, private_data: &[u8]) -> Result<Id> {
        self.ask(self.id()?, to, private_data)
    }

    /// An id that has asked where datagrams for an address go: the answer is the next event.
    pub fn look_up(&self, to: SocketAddrV4) -> Result<Id> {
        self.ask(self.id_in(RDMA_PS_UDP)?, to, &[])
    }

    fn ask(&self, id: Id, to: SocketAddrV4, private_data: &[u8]) -> Result<Id> {
        let to_raw = sockaddr(to);
        // SAFETY: a live id, and an address that is copied.
        check(unsafe { (library().rdma_resolve_addr)(id.0, ptr::null(), &raw const to_raw, RESOLVE) })?;
        self.expect(kind::ADDR_RESOLVED)?;
        // SAFETY: a live id.
        check(unsafe { (library().rdma_resolve_route)(id.0, RESOLVE) })?;
        self.expect(kind::ROUTE_RESOLVED)?;
        id.connect(private_data)?;
        Ok(id)
    }

    /// A connection made from this end.
    pub fn connected(&self, to: SocketAddrV4) -> Result<Id> {
        let id = self.connect(to, &[])?;
        let answer = self.next_within(PATIENCE)?;
        if answer.kind != kind::CONNECT_RESPONSE {
            bail!("event {} (status {}) instead of a reply", answer.kind, answer.status);
        }
        id.establish()?;
        Ok(id)
    }

    /// A connection made from the other end.
    pub fn accepted(&self) -> Result<Id> {
        let id = self.expect(kind::CONNECT_REQUEST)?.id.expect("a request has an id");
        id.accept()?;
        self.expect(kind::ESTABLISHED)?;
        Ok(id)
    }
}

/// Waits for an event that does not come. No value in here needs to be dropped: it is unwound from the waiting.
unsafe extern "C-unwind" fn wait_for_ever(channel: *mut c_void) -> *mut c_void {
    type GetCmEvent = unsafe extern "C-unwind" fn(*mut c_void, *mut *mut RawEvent) -> c_int;
    let mut event = ptr::null_mut();
    // SAFETY: `rdma_get_cm_event(3)`, with a channel and room for an event's address.
    unsafe {
        let wait = std::mem::transmute::<*const (), GetCmEvent>(library().rdma_get_cm_event as *const ());
        wait(channel, &raw mut event);
    }
    ptr::null_mut()
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: ours; its ids have gone before.
        unsafe { (library().rdma_destroy_event_channel)(self.0) };
    }
}

fn param(private_data: &[u8]) -> Result<ConnParam> {
    Ok(ConnParam {
        private_data: private_data.as_ptr().cast(),
        private_data_len: u8::try_from(private_data.len())?,
        responder_resources: 1,
        initiator_depth: 1,
        flow_control: 0,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: 0,
        // No queue pair: whatever the number, nothing is sent to it.
        qp_num: 17,
    })
}

impl Id {
    /// Address, to tell ids apart.
    pub fn address(&self) -> usize {
        self.0 as usize
    }

    /// Whether the id is bound to a device: `verbs` of `struct rdma_cm_id` (rdma_cma.h), its first field.
    pub fn has_device(&self) -> bool {
        // SAFETY: a live id, which begins with this pointer.
        unsafe { !self.0.cast::<*const c_void>().read().is_null() }
    }

    /// The own port (`rdma_get_src_port(3)`), of an id with addresses.
    pub fn port(&self) -> u16 {
        // SAFETY: a live id, which begins with these fields; a `sockaddr_in` or longer.
        let [_, _, high, low, ..] = unsafe { (*self.0.cast::<IdHead>()).source };
        u16::from_be_bytes([high, low])
    }

    /// The own address and the peer's (`rdma_get_local_addr` and `rdma_get_peer_addr`), of an id with IPv4 addresses:
    /// they stand in `route.addr` (rdma_cma.h).
    pub fn addresses(&self) -> [Ipv4Addr; 2] {
        let raw = self.0.cast::<IdHead>();
        // SAFETY: a live id, which begins with these fields; unions as long as a `sockaddr_storage`.
        let (source, destination) = unsafe { ((*raw).source, (*raw).destination) };
        [source, destination].map(|end| {
            let [_, _, _, _, a, b, c, d, ..] = end;
            Ipv4Addr::new(a, b, c, d)
        })
    }

    /// `rdma_bind_addr(3)`.
    pub fn bind(&self, address: SocketAddrV4) -> Result<(), Errno> {
        let raw = sockaddr(address);
        // SAFETY: a live id, and an address that is copied.
        check(unsafe { (library().rdma_bind_addr)(self.0, &raw const raw) })
    }

    /// `rdma_bind_addr(3)` to a GID, as a `sockaddr_ib` (`<infiniband/ib.h>`) of family 27.
    pub fn bind_gid(&self, gid: [u8; 16]) -> Result<(), Errno> {
        let mut raw = [0_u64; 6];
        let fields = [&27_u16.to_ne_bytes()[..], &[0; 6], &gid].concat();
        for (word, bytes) in raw.iter_mut().zip(fields.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
        }
        // SAFETY: a live id, and an address that is copied, by its family's length: 48 bytes.
        check(unsafe { (library().rdma_bind_addr)(self.0, raw.as_ptr().cast()) })
    }

    /// `rdma_listen(3)`.
    pub fn listen(&self, backlog: c_int) -> Result<(), Errno> {
        // SAFETY: a live id.
        check(unsafe { (library().rdma_listen)(self.0, backlog) })
    }

    /// `rdma_connect(3)`, of an id that is bound to a device.
    pub fn connect(&self, private_data: &[u8]) -> Result<()> {
        let mut param = param(private_data)?;
        // SAFETY: a live id, and parameters that are copied.
        Ok(check(unsafe { (library().rdma_connect)(self.0, &raw mut param) })?)
    }

    /// `rdma_accept(3)`.
    pub fn accept(&self) -> Result<()> {
        let mut param = param(&[])?;
        // SAFETY: a live id, and parameters that are copied.
        Ok(check(unsafe { (library().rdma_accept)(self.0, &raw mut param) })?)
    }

    /// `rdma_reject(3)`.
    pub fn reject(&self, private_data: &[u8]) -> Result<()> {
        let len = u8::try_from(private_data.len())?;
        // SAFETY: a live id, and data that is copied.
        Ok(check(unsafe { (library().rdma_reject)(self.0, private_data.as_ptr().cast(), len) })?)
    }

    /// `rdma_establish(3)`.
    pub fn establish(&self) -> Result<(), Errno> {
        // SAFETY: a live id.
        check(unsafe { (library().rdma_establish)(self.0) })
    }

    /// `rdma_disconnect(3)`.
    pub fn disconnect(&self) -> Result<(), Errno> {
        // SAFETY: a live id.
        check(unsafe { (library().rdma_disconnect)(self.0) })
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: ours, and all its events are acknowledged.
        let destroyed = check(unsafe { (library().rdma_destroy_id)(self.0) });
        assert!(destroyed.is_ok() || std::thread::panicking(), "rdma_destroy_id: {destroyed:?}");
    }
}
