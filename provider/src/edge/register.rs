//! How libibverbs gets to know the provider, and the devices.

use std::ffi::{CStr, c_char};
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;

use urxe_ffi::driver::device::{VERBS_MATCH_SENTINEL, verbs_device, verbs_device_ops, verbs_match_ent};
use urxe_ffi::driver::device::{verbs_match_value, verbs_sysfs_dev};
use urxe_ffi::private::Libibverbs;
use urxe_net::cancellation::Shield;

use super::{context, guarded, import};
use crate::observe::complain;
use crate::{device, kernel, runtime};

/// The library that loaded us.
static LIBRARY: OnceLock<Libibverbs> = OnceLock::new();

/// `abi_version` of our uverbs devices, as `urxe install` writes it to sysfs.
const ABI_VERSION: u32 = 1;

static MATCH_TABLE: [verbs_match_ent; 1] = [verbs_match_ent {
    driver_data: ptr::null_mut(),
    u: verbs_match_value { driver_id: 0 },
    vendor: 0,
    device: 0,
    kind: VERBS_MATCH_SENTINEL,
}];

static OPS: verbs_device_ops = verbs_device_ops {
    name: c"urxe".as_ptr(),
    match_min_abi_version: ABI_VERSION,
    match_max_abi_version: ABI_VERSION,
    match_table: MATCH_TABLE.as_ptr(),
    static_providers: ptr::null_mut(),
    match_device: Some(match_device),
    alloc_context: Some(context::alloc_context),
    import_context: Some(import::import_context),
    alloc_device: Some(alloc_device),
    uninit_device: Some(uninit_device),
};

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = construct;

/// The library that loaded us.
pub(super) fn library() -> Option<&'static Libibverbs> {
    LIBRARY.get()
}

extern "C" fn construct() {
    if urxe_preload::is_active() {
        // Preloaded, and libibverbs may come later, or never. It will not run this constructor then.
        urxe_preload::find_next_functions();
        urxe_preload::hold_folder(urxe_options::RUN_USERS_LOCK);
        urxe_preload::when_devices_are_looked_for(register);
        urxe_preload::counters_are(&crate::status::sysfs::LIVE);
    }
    register();
}

/// Makes us known to the libibverbs of this process, if there is one. Again does no harm.
extern "C" fn register() {
    let _shield = Shield::new();
    let _ = guarded(|| {
        if LIBRARY.get().is_some() {
            return Ok(());
        }
        // Not loaded by libibverbs, but preloaded, or by a test or a curious program: nothing to do.
        let Ok(library) = Libibverbs::loaded().map_err(|error| {
            if error != urxe_ffi::private::LookupError::NotLoaded {
                complain(&error);
            }
        }) else {
            return Ok(());
        };
        runtime::fork::notice();
        if let Err(error) = kernel::hook::install(library.address()) {
            complain(&format_args!("cannot divert libibverbs' system calls: {error}"));
            return Ok(());
        }
        kernel::ucma::hook::install_if_loaded();
        if LIBRARY.set(library).is_ok() {
            // SAFETY: the ops are static, made for every version, and libibverbs never unloads a provider.
            unsafe { library.register_driver(&OPS) };
        }
        Ok(())
    });
}

/// The name of a device, such as `urxe0`.
///
/// # Safety
/// `name` is a C string.
unsafe fn name(name: *const c_char) -> Option<String> {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(name) }.to_str().ok().map(str::to_owned)
}

unsafe extern "C" fn match_device(sysfs_dev: *mut verbs_sysfs_dev) -> bool {
    let _shield = Shield::new();
    guarded(|| {
        // SAFETY: libibverbs passes a device it has filled in.
        let name = unsafe { name((&raw const (*sysfs_dev).ibdev_name).cast()) };
        // SAFETY: as above.
        let dir = unsafe { self::name((&raw const (*sysfs_dev).ibdev_path).cast()) };
        if let (Some(name), Some(dir)) = (&name, &dir) {
            device::remember_guid(name, Path::new(dir));
        }
        kernel::ucma::hook::install_if_loaded();
        // From now on verbs may be called, and some may have to fail.
        let _ = crate::observe::settings::get();
        Ok(name.is_some_and(|name| device::netdev_of(&name).is_some()))
    })
    .unwrap_or(false)
}

unsafe extern "C" fn alloc_device(_sysfs_dev: *mut verbs_sysfs_dev) -> *mut verbs_device {
    // SAFETY: all-zero is what libibverbs expects of a new device.
    let mut device = Box::new(unsafe { std::mem::zeroed::<verbs_device>() });
    // IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS: optional rights reach `reg_mr`.
    device.core_support = 1;
    Box::into_raw(device)
}

unsafe extern "C" fn uninit_device(device: *mut verbs_device) {
    // SAFETY: libibverbs returns what `alloc_device` gave it, once.
    drop(unsafe { Box::from_raw(device) });
}
