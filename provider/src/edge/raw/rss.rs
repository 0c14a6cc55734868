//! Indirection tables, and queue pairs that spread frames over them (`ibv_create_rwq_ind_table(3)`).

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::{Arc, Mutex};

use urxe_engine::flow::rss::{ALL_FIELDS, KEY, Toeplitz};
use urxe_explain::Verb;
use urxe_ffi::driver::objects::verbs_qp;
use urxe_ffi::verbs as v;

use super::object::{Kind, RawQpObject};
use super::{qp, wq};
use crate::edge::batch::Builder;
use crate::edge::context::shared;
use crate::edge::users::{Use, Users};
use crate::edge::{int_verb, mr, ptr_verb};
use crate::kernel::Errno;
use crate::verbs::diagnostics;
use crate::verbs::quota::Counted;
use urxe_runtime::limits;
use urxe_runtime::raw::{RecvQueue, Rss};
use urxe_runtime::sanitizer;

const EINVAL: Errno = Errno(libc::EINVAL);
const EOPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);

/// An `ibv_rwq_ind_table` of ours.
#[repr(C)]
struct TableObject {
    ibv: v::ibv_rwq_ind_table,
    queues: Vec<Arc<RecvQueue>>,
    /// Queue pairs with the table.
    users: Users,
    used: Use,
    _counted: Counted,
}

pub(in crate::edge) unsafe extern "C" fn create_rwq_ind_table(
    ibv_context: *mut v::ibv_context,
    attr: *mut v::ibv_rwq_ind_table_init_attr,
) -> *mut v::ibv_rwq_ind_table {
    ptr_verb(Verb::CreateRwqIndTable, || {
        // SAFETY: the caller's context and attributes.
        let (context, attr) = unsafe { (shared(ibv_context), &*attr) };
        context.check_alive()?;
        let size = 1_u32.checked_shl(attr.log_ind_tbl_size).filter(|size| *size <= limits::MAX_RWQ_IND_TABLE);
        let size = size.ok_or_else(|| {
            diagnostics::at_most(EINVAL, "1 << log_ind_tbl_size", attr.log_ind_tbl_size, limits::MAX_RWQ_IND_TABLE)
        })?;
        if attr.comp_mask != 0 || attr.ind_tbl.is_null() {
            return Err(EINVAL);
        }
        let counted = context.quotas().ind_table.take()?;
        // SAFETY: a table of that size, of queues that are ours.
        let objects = (0..size as usize).map(|at| unsafe { wq::object(attr.ind_tbl.add(at).read()) });
        let objects: Vec<_> = objects.collect();
        let queues = objects.iter().map(|object| Arc::clone(&object.queue)).collect();
        let users: Vec<_> = objects.iter().map(|object| &object.users).collect();
        // SAFETY: `destroy_wq` refuses as long as this lives.
        let used = unsafe { Use::of(&users) };
        let ind_tbl_num = c_int::try_from(objects.first().map_or(0, |first| first.queue.number().get()));
        let ibv = v::ibv_rwq_ind_table {
            context: ibv_context,
            ind_tbl_handle: 0,
            ind_tbl_num: ind_tbl_num.unwrap_or_default(),
            comp_mask: 0,
        };
        let object = TableObject { ibv, queues, users: Users::default(), used, _counted: counted };
        Ok(Box::into_raw(Box::new(object)).cast())
    })
}

pub(in crate::edge) unsafe extern "C" fn destroy_rwq_ind_table(table: *mut v::ibv_rwq_ind_table) -> c_int {
    int_verb(Verb::DestroyRwqIndTable, || {
        // SAFETY: the caller's table.
        let (context, object) = unsafe { (shared((*table).context), &*table.cast::<TableObject>()) };
        context.check_own()?;
        if object.users.any() {
            return Err(diagnostics::wrong(
                Errno(libc::EBUSY),
                "a queue pair has the indirection table",
                "call ibv_destroy_qp first",
            ));
        }
        // SAFETY: from `create_rwq_ind_table`, and not used any more.
        drop(unsafe { Box::from_raw(table.cast::<TableObject>()) }.used);
        Ok(())
    })
}

/// Makes a queue pair that spreads frames over work queues.
///
/// # Safety
/// The context and the objects that the attributes name are ours and live.
pub(super) unsafe fn create_qp(
    ibv_context: *mut v::ibv_context,
    attr: &v::ibv_qp_init_attr_ex,
) -> Result<*mut v::ibv_qp, Errno> {
    const NEEDED: u32 = v::IBV_QP_INIT_ATTR_PD | v::IBV_QP_INIT_ATTR_IND_TABLE | v::IBV_QP_INIT_ATTR_RX_HASH;
    // SAFETY: the caller's context.
    let context = unsafe { shared(ibv_context) };
    if attr.comp_mask & !(NEEDED | v::IBV_QP_INIT_ATTR_CREATE_FLAGS) != 0
        || (attr.comp_mask & v::IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 && attr.create_flags != 0)
    {
        return Err(EOPNOTSUPP);
    }
    if attr.comp_mask & NEEDED != NEEDED || attr.pd.is_null() || attr.rwq_ind_tbl.is_null() {
        return Err(diagnostics::wrong(EINVAL, "pd, rwq_ind_tbl or rx_hash_conf is missing", "set all three"));
    }
    let conf = &attr.rx_hash_conf;
    if conf.rx_hash_function != v::IBV_RX_HASH_FUNC_TOEPLITZ.to_le_bytes()[0]
        || conf.rx_hash_fields_mask & !ALL_FIELDS != 0
    {
        return Err(diagnostics::wrong(
            EOPNOTSUPP,
            "the device has Toeplitz over addresses and ports, and nothing inside of tunnels",
            "use IBV_RX_HASH_FUNC_TOEPLITZ, and no fields of IPsec or inner headers",
        ));
    }
    if usize::from(conf.rx_hash_key_len) != KEY || conf.rx_hash_key.is_null() {
        return Err(diagnostics::wrong(
            EINVAL,
            "a key of Toeplitz has 40 bytes",
            "set rx_hash_key and rx_hash_key_len",
        ));
    }
    // SAFETY: the caller's key, of that length.
    let key = unsafe { conf.rx_hash_key.cast::<[u8; KEY]>().read() };
    // SAFETY: the caller's domain and table.
    let (domain, table) = unsafe { (Arc::clone(mr::domain(attr.pd)), &*attr.rwq_ind_tbl.cast::<TableObject>()) };
    let hash = Toeplitz { key, fields: conf.rx_hash_fields_mask };
    let rss = Arc::new(Rss::new(hash, table.queues.clone()).ok_or(EINVAL)?);
    let counted = context.quotas().qp.take()?;
    let device = context.device();
    device.raw().tx(device.net()).map_err(|error| qp::refused(&error))?;
    let number = device.net().alloc_qpn().map_err(|error| diagnostics::no_qpn(&error))?;
    let mut verbs = verbs_qp::zeroed();
    let ibv = verbs.public_mut();
    ibv.context = ibv_context;
    ibv.qp_context = attr.qp_context;
    ibv.pd = attr.pd;
    (ibv.handle, ibv.qp_num) = (number.get(), number.get());
    ibv.qp_type = attr.qp_type;
    let object = RawQpObject {
        verbs: UnsafeCell::new(verbs),
        kind: Kind::Rss(rss),
        builder: Builder::default(),
        max_inline: 0,
        groups: Mutex::default(),
        users: Users::default(),
        domain,
        // SAFETY: `destroy_rwq_ind_table` refuses as long as this lives.
        used: unsafe { Use::of(&[&table.users]) },
        _counted: counted,
    };
    let object = Box::into_raw(Box::new(object));
    sanitizer::written(object as u64, size_of::<RawQpObject>());
    Ok(object.cast())
}
