//! Protection domains, memory regions, and how attributes and requests look to the engine.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use urxe_engine::attr::{AttrMask, QpAttr};
use urxe_engine::{Access, Key, MigrationState, Pd, PostError, QpCap, QpState, Region, RegionKind};
use urxe_ffi::verbs as v;
use urxe_wire::{Mtu, Psn, QKey, Qpn, RnrTimer};

use super::diagnostics;
use super::quota::Counted;
use super::shards::ThreadNumber;
use crate::kernel::Errno;
use urxe_runtime::limits;
use urxe_runtime::memory::maps;
use urxe_runtime::memory::regions::Regions;

const EINVAL: Errno = Errno(libc::EINVAL);

/// A protection domain. It can be freed when nobody else holds it.
#[derive(Debug)]
pub(crate) struct ProtectionDomain {
    id: Pd,
    /// How many `ibv_pd` stand for it: more than one after `ibv_import_pd`.
    names: Arc<AtomicUsize>,
    /// Of a parent domain: what it stands for, kept from being freed.
    within: Option<(Arc<Self>, Option<Arc<ThreadDomain>>)>,
    /// A parent domain is none of the device's.
    _counted: Option<Counted>,
}

/// A thread domain. It can be freed when nobody else holds it.
#[derive(Debug)]
pub(crate) struct ThreadDomain {
    /// Number of its thread, whichever that is.
    number: ThreadNumber,
}

impl ThreadDomain {
    pub(crate) fn new() -> Self {
        Self { number: ThreadNumber::new() }
    }
}

impl ProtectionDomain {
    /// A new one. Numbers are unique in the process: all contexts of a device share a table of regions.
    pub(crate) fn new(counted: Counted, ctxn: u32) -> Arc<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        // The upper half stands for domains of other processes (`xrc::client`).
        let id = Pd(NEXT.fetch_add(1, Ordering::Relaxed) & i32::MAX.cast_unsigned());
        let names = Arc::<AtomicUsize>::default();
        Arc::new_cyclic(|domain: &Weak<Self>| {
            // Whoever looks does not hold it: it can be freed meanwhile.
            let (seen, named) = (domain.clone(), Arc::clone(&names));
            let describe = move || {
                let users = seen.strong_count().saturating_sub(named.load(Ordering::Acquire));
                Some(vec![("pdn", id.0.into()), ("users", users as u64), ("ctxn", ctxn.into())])
            };
            let counted = counted.tracked(|_| describe);
            Self { id, names, within: None, _counted: Some(counted) }
        })
    }

    /// A parent domain: to the engine, the same domain.
    pub(crate) fn within(parent: Arc<Self>, thread: Option<Arc<ThreadDomain>>) -> Arc<Self> {
        Arc::new(Self { id: parent.id, names: Arc::default(), within: Some((parent, thread)), _counted: None })
    }

    /// Returns the protection domain's number.
    pub(crate) const fn id(&self) -> Pd {
        self.id
    }

    /// Whether the domain stands for another.
    pub(crate) const fn is_parent(&self) -> bool {
        self.within.is_some()
    }

    /// Returns the number of the thread domain of a parent domain, where it has one.
    pub(crate) fn thread(&self) -> Option<ThreadNumber> {
        self.within.as_ref()?.1.as_ref().map(|thread| thread.number)
    }

    /// Counts an `ibv_pd` more that stands for it.
    pub(crate) fn named(&self) {
        self.names.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts an `ibv_pd` less.
    pub(crate) fn unnamed(&self) {
        self.names.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether anything but `ibv_pd`s holds it.
    pub(crate) fn is_used(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) > self.names.load(Ordering::Acquire)
    }
}

/// Arguments of `ibv_reg_mr_iova(3)`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registration {
    /// Address of the memory.
    pub(crate) address: u64,
    /// Bytes.
    pub(crate) length: u64,
    /// The address that work requests give for it.
    pub(crate) iova: u64,
    /// `ibv_access_flags`.
    pub(crate) access: u32,
}

/// Rights that a region may be given. Optional ones (`IBV_ACCESS_OPTIONAL_RANGE`: relaxed ordering) change nothing.
const REGION_ACCESS: u32 = v::IBV_ACCESS_LOCAL_WRITE
    | v::IBV_ACCESS_REMOTE_WRITE
    | v::IBV_ACCESS_REMOTE_READ
    | v::IBV_ACCESS_REMOTE_ATOMIC
    | v::IBV_ACCESS_MW_BIND
    | v::IBV_ACCESS_ZERO_BASED
    | v::IBV_ACCESS_HUGETLB
    | v::IBV_ACCESS_ON_DEMAND
    | Access::FLUSH_GLOBAL.bits()
    | Access::FLUSH_PERSISTENT.bits();

/// Optional rights: bits 20 to 29 (`ibv_reg_mr(3)`).
const OPTIONAL_ACCESS: u32 = 0x3ff0_0000;

impl Registration {
    /// Registers the memory.
    ///
    /// # Errors
    /// As for [`region`](Self::region); ENOMEM.
    pub(crate) fn register(&self, regions: &Regions, pd: Pd) -> Result<Key, Errno> {
        let region = self.region(pd)?;
        let make = |key| Region { key, ..region };
        regions.insert(make).map_err(|_| Errno(libc::ENOMEM))
    }

    /// The region it would be, without its key.
    ///
    /// # Errors
    /// The kernel's: EINVAL for a length that wraps around, unknown rights, a remote right to change what may not be
    /// changed locally (`ib_check_mr_access`), or persistence of what does not last; EFAULT for memory that is not there, or read-only where
    /// writing is asked for, unless its pages are to be looked for on demand only.
    pub(crate) fn region(&self, pd: Pd) -> Result<Region, Errno> {
        let access = self.access & !OPTIONAL_ACCESS;
        let changes_remotely = access & (v::IBV_ACCESS_REMOTE_WRITE | v::IBV_ACCESS_REMOTE_ATOMIC) != 0;
        if access & !REGION_ACCESS != 0 || (changes_remotely && access & v::IBV_ACCESS_LOCAL_WRITE == 0) {
            return Err(diagnostics::region_access(access, REGION_ACCESS));
        }
        if self.address.checked_add(self.length).is_none() {
            return Err(diagnostics::wrong(EINVAL, "addr + length wraps around", "check the length"));
        }
        let access = Access::from_bits(access);
        let iova = if access.contains(Access::ZERO_BASED) { 0 } else { self.iova };
        if iova.checked_add(self.length.saturating_sub(1)).is_none() {
            return Err(EINVAL);
        }
        if !access.contains(Access::ON_DEMAND) {
            maps::check(self.address, self.length, access.intersects(Access::ANY_WRITE))
                .map_err(|error| diagnostics::region_memory(self.address, self.length, error))?;
        }
        // As the kernel's rxe refuses it for what is no persistent memory (`rxe_mr_init_user`).
        if access.contains(Access::FLUSH_PERSISTENT) && !maps::is_persistent(self.address, self.length) {
            return Err(diagnostics::wrong(
                EINVAL,
                "IBV_ACCESS_FLUSH_PERSISTENT is for memory that lasts",
                "map a file with MAP_SHARED, not on tmpfs; or leave the right out",
            ));
        }
        let (length, host) = (self.length, self.address);
        Ok(Region { key: Key(0), pd, access, iova, length, host, kind: RegionKind::Memory })
    }
}

/// The sizes of a new queue pair, rounded up; there may be no receive queue.
///
/// # Errors
/// EINVAL for more than the device has.
pub(crate) fn queue_sizes(cap: &v::ibv_qp_cap, has_recv_queue: bool) -> Result<QpCap, Errno> {
    for (what, given, most) in [
        ("cap.max_send_wr", cap.max_send_wr, limits::MAX_QP_WR),
        ("cap.max_recv_wr", cap.max_recv_wr, limits::MAX_QP_WR),
        ("cap.max_send_sge", cap.max_send_sge, limits::MAX_SGE),
        ("cap.max_recv_sge", cap.max_recv_sge, limits::MAX_SGE),
        ("cap.max_inline_data", cap.max_inline_data, limits::MAX_INLINE),
    ] {
        if given > most {
            return Err(diagnostics::at_most(EINVAL, what, given, most));
        }
    }
    Ok(QpCap {
        max_send_wr: cap.max_send_wr.max(1),
        max_recv_wr: if has_recv_queue { cap.max_recv_wr.max(1) } else { 0 },
        max_send_sge: cap.max_send_sge.max(1),
        max_recv_sge: if has_recv_queue { cap.max_recv_sge.max(1) } else { 0 },
        // Room that a list of addresses would take in a card's queue is room for data: programs count on it.
        max_inline_data: cap.max_inline_data.max(limits::LEAST_INLINE),
    })
}

/// The engine's view of `struct ibv_qp_attr`.
///
/// # Errors
/// EINVAL for a value out of range.
pub(crate) fn engine_attr(attr: &v::ibv_qp_attr, mask: AttrMask) -> Result<QpAttr, Errno> {
    let given = |bit| mask.contains(bit);
    let mtu = u8::try_from(attr.path_mtu).ok().and_then(Mtu::from_code);
    let alternate_ports = [attr.alt_port_num, attr.alt_ah_attr.port_num];
    let path_mig_state = MigrationState::from_u32(attr.path_mig_state);
    for (bit, bad) in [
        (AttrMask::PATH_MTU, mtu.is_none()),
        (AttrMask::PORT, attr.port_num != 1),
        (AttrMask::AV, attr.ah_attr.port_num != 1),
        (AttrMask::ALT_PATH, alternate_ports != [1, 1] || attr.alt_pkey_index != 0),
        (AttrMask::PATH_MIG_STATE, path_mig_state.is_none()),
        (AttrMask::PKEY_INDEX, attr.pkey_index != 0),
        (AttrMask::MAX_QP_RD_ATOMIC, attr.max_rd_atomic > limits::MAX_RD_ATOM),
        (AttrMask::MAX_DEST_RD_ATOMIC, attr.max_dest_rd_atomic > limits::MAX_RD_ATOM),
        (AttrMask::MIN_RNR_TIMER, attr.min_rnr_timer > 31),
    ] {
        if given(bit) && bad {
            return Err(diagnostics::value(bit));
        }
    }
    Ok(QpAttr {
        access: Access::from_bits(attr.qp_access_flags),
        path_mtu: mtu.unwrap_or(Mtu::Mtu1024),
        dest_qpn: Qpn::new(attr.dest_qp_num),
        rq_psn: Psn::new(attr.rq_psn),
        sq_psn: Psn::new(attr.sq_psn),
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        min_rnr_timer: RnrTimer::new(attr.min_rnr_timer),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        q_key: QKey(attr.qkey),
        sqd_notify: attr.en_sqd_async_notify != 0,
        alt_timeout: attr.alt_timeout,
        path_mig_state: path_mig_state.unwrap_or_default(),
        has_alternate: given(AttrMask::ALT_PATH),
        is_untold: false,
    })
}

/// Puts what the engine knows into an answer to `ibv_query_qp`.
pub(crate) fn answer_attr(answer: &mut v::ibv_qp_attr, state: QpState, attr: &QpAttr) {
    answer.qp_state = state as u32;
    answer.cur_qp_state = state as u32;
    answer.path_mtu = u32::from(attr.path_mtu.code());
    answer.qkey = attr.q_key.0;
    answer.rq_psn = attr.rq_psn.get();
    answer.sq_psn = attr.sq_psn.get();
    answer.dest_qp_num = attr.dest_qpn.get();
    answer.qp_access_flags = attr.access.bits();
    answer.timeout = attr.timeout;
    answer.retry_cnt = attr.retry_cnt;
    answer.rnr_retry = attr.rnr_retry;
    answer.min_rnr_timer = attr.min_rnr_timer.code();
    answer.max_rd_atomic = attr.max_rd_atomic;
    answer.max_dest_rd_atomic = attr.max_dest_rd_atomic;
    answer.en_sqd_async_notify = u8::from(attr.sqd_notify);
    answer.port_num = 1;
    answer.path_mig_state = attr.path_mig_state as u32;
    answer.alt_port_num = u8::from(attr.has_alternate);
    answer.alt_timeout = attr.alt_timeout;
}

/// The errno of a refused post (`ibv_post_send(3)`, `ibv_post_recv(3)`).
impl From<PostError> for Errno {
    fn from(error: PostError) -> Self {
        let errno = match error {
            PostError::QueueFull => Self(libc::ENOMEM),
            PostError::State(_)
            | PostError::TooManySge
            | PostError::InlineTooLong
            | PostError::Length
            | PostError::NoRecvQueue
            | PostError::Operation => EINVAL,
        };
        diagnostics::post(errno, error)
    }
}
