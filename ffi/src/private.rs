//! A libibverbs that is loaded in this process, and what it exports to providers.
//!
//! Everything is looked up at run time: by name, because the names carry the version, and without linking, because one
//! provider file serves several versions. A process may hold several copies of libibverbs, each of another version: wheels
//! and other bundles bring their own. That the op table has the shape we think is not believed but tried (see `private/probe.rs`): it once grew without a new number, and handing over a table of the
//! wrong shape would make libibverbs jump anywhere.

use crate::driver::device::verbs_device_ops;
use crate::driver::{ContextOps, Layout, Pabi, QpLayout};
use crate::verbs::{ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_qp, ibv_qp_ex, verbs_context};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::fmt;

mod probe;

type RegisterDriver = unsafe extern "C" fn(ops: *const verbs_device_ops);
type SetOps = unsafe extern "C" fn(context: *mut verbs_context, ops: *const c_void);
type InitAndAllocContext = unsafe extern "C" fn(
    device: *mut ibv_device,
    cmd_fd: c_int,
    alloc_size: usize,
    context_offset: *mut verbs_context,
    driver_id: u32,
) -> *mut c_void;
type UninitContext = unsafe extern "C" fn(context: *mut verbs_context);
type InitCq = unsafe extern "C" fn(
    cq: *mut ibv_cq,
    context: *mut ibv_context,
    channel: *mut ibv_comp_channel,
    cq_context: *mut c_void,
);
type QpToQpEx = unsafe extern "C" fn(qp: *mut ibv_qp) -> *mut ibv_qp_ex;

/// Why a libibverbs cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupError {
    /// No library of this name is loaded.
    NotLoaded,
    /// Exports no registration function of [`Pabi::ALL`].
    UnknownPabi,
    /// A function that every version has is missing.
    Missing(&'static CStr),
    /// Unknown shape of the op table; the number is how many ops it has.
    UnknownOps(usize),
    /// Unknown shape of `verbs_qp`.
    UnknownQp,
}

impl fmt::Display for LookupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLoaded => f.write_str("this libibverbs is not loaded any more"),
            Self::UnknownPabi => {
                f.write_str("this libibverbs has a private provider ABI other than")?;
                for (i, pabi) in Pabi::ALL.into_iter().enumerate() {
                    write!(f, "{} {}", if i == 0 { "" } else { "," }, pabi.number())?;
                }
                Ok(())
            }
            Self::Missing(symbol) => write!(f, "this libibverbs does not export {}", symbol.to_string_lossy()),
            Self::UnknownOps(count) => write!(f, "this libibverbs has an unknown op table ({count} ops)"),
            Self::UnknownQp => f.write_str("this libibverbs has an unknown layout of struct verbs_qp"),
        }
    }
}

impl core::error::Error for LookupError {}

/// A loaded libibverbs.
#[derive(Clone, Copy)]
pub struct Libibverbs {
    pabi: Pabi,
    layout: Layout,
    qp_layout: QpLayout,
    register_driver: RegisterDriver,
    set_ops: SetOps,
    init_and_alloc_context: InitAndAllocContext,
    uninit_context: UninitContext,
    init_cq: InitCq,
}

impl Libibverbs {
    /// The libibverbs at `path`, which is loaded already, and its version. It stays loaded from now on.
    ///
    /// A path with a slash is the loader's own name of one copy; a name without one is that of the first copy that has it.
    pub fn loaded(path: &CStr) -> Result<Self, LookupError> {
        let library = Library::already_loaded(path).ok_or(LookupError::NotLoaded)?;
        let (pabi, register_driver) = Pabi::ALL
            .into_iter()
            .find_map(|pabi| Some((pabi, library.symbol(pabi.register_symbol())?)))
            .ok_or(LookupError::UnknownPabi)?;
        let set_ops = library.required(c"verbs_set_ops")?;
        let init_and_alloc_context = library.required(c"_verbs_init_and_alloc_context")?;
        let uninit_context = library.required(c"verbs_uninit_context")?;
        let init_cq = library.required(c"verbs_init_cq")?;
        let qp_to_qp_ex = library.required(c"ibv_qp_to_qp_ex")?;
        // SAFETY: each address is that of the function of this name, whose signature is the same in all versions.
        let (set_ops, qp_to_qp_ex) = unsafe {
            (
                core::mem::transmute::<*mut c_void, SetOps>(set_ops),
                core::mem::transmute::<*mut c_void, QpToQpEx>(qp_to_qp_ex),
            )
        };
        Ok(Self {
            pabi,
            layout: probe::layout(set_ops)?,
            qp_layout: probe::qp_layout(qp_to_qp_ex)?,
            set_ops,
            // SAFETY: as above.
            register_driver: unsafe { core::mem::transmute::<*mut c_void, RegisterDriver>(register_driver) },
            // SAFETY: as above.
            init_and_alloc_context: unsafe {
                core::mem::transmute::<*mut c_void, InitAndAllocContext>(init_and_alloc_context)
            },
            // SAFETY: as above.
            uninit_context: unsafe { core::mem::transmute::<*mut c_void, UninitContext>(uninit_context) },
            // SAFETY: as above.
            init_cq: unsafe { core::mem::transmute::<*mut c_void, InitCq>(init_cq) },
        })
    }

    /// The number of its private ABI.
    pub const fn pabi(&self) -> Pabi {
        self.pabi
    }

    /// The shape of its op table and `verbs_context`.
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// The shape of its `verbs_qp`.
    pub const fn qp_layout(&self) -> QpLayout {
        self.qp_layout
    }

    /// An address inside the library's code: tells which loaded object it is.
    pub fn address(&self) -> *const c_void {
        self.register_driver as *const c_void
    }

    /// `verbs_register_driver_<N>`: makes a provider known.
    ///
    /// # Safety
    /// `ops` and what it points to hold for this version and outlive the process' use of libibverbs.
    pub unsafe fn register_driver(&self, ops: &'static verbs_device_ops) {
        // SAFETY: the caller's promise.
        unsafe { (self.register_driver)(ops) }
    }

    /// `_verbs_init_and_alloc_context`: a zeroed, initialised `verbs_context` of this version with `extra` bytes
    /// behind it, that is behind the `ibv_context` (which see: [`Self::public`]).
    ///
    /// Allocated with calloc(3): give it to free(3) after [`Self::uninit_context`]. Null, with errno set and `cmd_fd`
    /// closed, when out of memory. It probes `cmd_fd` with an ioctl, so be ready to answer by then.
    ///
    /// # Safety
    /// `device` is one that this library handed out. `cmd_fd` is owned, and ownership goes to the context.
    pub unsafe fn init_and_alloc_context(
        &self,
        device: *mut ibv_device,
        cmd_fd: c_int,
        extra: usize,
        driver_id: u32,
    ) -> *mut verbs_context {
        let size = self.layout.context_size() + extra;
        // SAFETY: the caller's promise; the block is large enough for a verbs_context at offset 0.
        unsafe { (self.init_and_alloc_context)(device, cmd_fd, size, core::ptr::null_mut(), driver_id) }.cast()
    }

    /// The public context in a `verbs_context` of this version.
    ///
    /// # Safety
    /// `context` came from [`Self::init_and_alloc_context`].
    pub unsafe fn public(&self, context: *mut verbs_context) -> *mut ibv_context {
        // SAFETY: the block is at least `context_size()` bytes long.
        unsafe { context.byte_add(self.layout.context_offset()) }.cast()
    }

    /// The `verbs_context` of this version around a public context.
    ///
    /// # Safety
    /// `context` came from [`Self::public`].
    pub unsafe fn context(&self, context: *mut ibv_context) -> *mut verbs_context {
        // SAFETY: the inverse of `public`.
        unsafe { context.byte_sub(self.layout.context_offset()) }.cast()
    }

    /// `verbs_set_ops`, with the table of this version. May be called again to replace some.
    ///
    /// # Safety
    /// `context` came from [`Self::init_and_alloc_context`] and each op does what its man page says.
    pub unsafe fn set_ops(&self, context: *mut verbs_context, ops: &ContextOps) {
        let table = ops.table(self.layout);
        // SAFETY: the table has this version's shape, as probed; libibverbs copies it.
        unsafe { (self.set_ops)(context, table.as_ptr()) }
    }

    /// `verbs_uninit_context`: closes `cmd_fd` and `async_fd` unless they are -1, and lets go of the device. Does not
    /// free the context.
    ///
    /// # Safety
    /// `context` came from [`Self::init_and_alloc_context`] and is not used by anyone any more.
    pub unsafe fn uninit_context(&self, context: *mut verbs_context) {
        // SAFETY: the caller's promise.
        unsafe { (self.uninit_context)(context) }
    }

    /// `verbs_init_cq`: what `ibv_create_cq` does by itself after the op returns; for CQs made another way.
    ///
    /// # Safety
    /// As for `ibv_create_cq`, with `cq` zeroed.
    pub unsafe fn init_cq(
        &self,
        cq: *mut ibv_cq,
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
    ) {
        // SAFETY: the caller's promise.
        unsafe { (self.init_cq)(cq, context, channel, cq_context) }
    }
}

/// A handle of dlopen(3), never closed: a loaded libibverbs stays for as long as there is a provider.
struct Library(*mut c_void);

impl Library {
    fn already_loaded(name: &CStr) -> Option<Self> {
        // SAFETY: a C string; RTLD_NOLOAD runs no code of others.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        (!handle.is_null()).then_some(Self(handle))
    }

    fn symbol(&self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: a live handle and a C string.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr().cast::<c_char>()) };
        (!address.is_null()).then_some(address)
    }

    fn required(&self, name: &'static CStr) -> Result<*mut c_void, LookupError> {
        self.symbol(name).ok_or(LookupError::Missing(name))
    }
}
