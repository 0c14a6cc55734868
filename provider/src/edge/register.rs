//! How libibverbs gets to know the provider, and the devices.

use std::ffi::{CStr, CString, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use urxe_ffi::driver::Pabi;
use urxe_ffi::driver::device::{VERBS_MATCH_SENTINEL, verbs_device, verbs_device_ops, verbs_match_ent};
use urxe_ffi::driver::device::{verbs_match_value, verbs_sysfs_dev};
use urxe_ffi::private::{Libibverbs, LookupError};
use urxe_net::cancellation::CancelGuard;
use urxe_runtime::memory::faultable_copy;
use urxe_runtime::sanitizer;

use super::registrations::{REGISTRATIONS, Registration};
use super::{guarded, import, open, reentrant, stub};
use crate::kernel::call_depth;
use crate::kernel::plt::{Exporter, exporters, file_name, loads};
use crate::{device, kernel};
use urxe_diag::explain::{record_in, tell_held};
use urxe_diag::messages::{self, StandardError, complain};
use urxe_runtime::fork_safe_mutex::{ForkSafeMutex, without_fork};

/// Paths of those that cannot be served.
static REFUSED: ForkSafeMutex<Vec<CString>> = ForkSafeMutex::new(Vec::new());

/// [`loads`] when copies were looked for last.
static LOADS: AtomicU64 = AtomicU64::new(0);

/// `abi_version` of our uverbs devices, as `urxe install` writes it to sysfs.
const ABI_VERSION: u32 = 1;

static MATCH_TABLE: [verbs_match_ent; 1] = [verbs_match_ent {
    driver_data: ptr::null_mut(),
    u: verbs_match_value { driver_id: 0 },
    vendor: 0,
    device: 0,
    kind: VERBS_MATCH_SENTINEL,
}];

/// In every private ABI.
const OPS: verbs_device_ops = verbs_device_ops {
    name: c"urxe".as_ptr(),
    match_min_abi_version: ABI_VERSION,
    match_max_abi_version: ABI_VERSION,
    match_table: MATCH_TABLE.as_ptr(),
    static_providers: ptr::null_mut(),
    match_device: Some(match_device),
    alloc_context: Some(open::alloc_context),
    import_context: Some(import::import_context),
    alloc_device: Some(alloc_device),
    uninit_device: Some(uninit_device),
};

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = construct;

extern "C" fn construct() {
    sanitizer::find();
    call_depth::set_catch_up(reentrant::catch_up);
    // Preloaded by `urxe run` and installed as well: one of the two serves the process.
    if guarded(|| Ok(stub::told_another_instance(urxe_register_provider))).unwrap_or(false) {
        return;
    }
    if urxe_preload::is_active() {
        // Preloaded, and libibverbs may come later, or never. It will not run this constructor then.
        urxe_preload::find_next_functions();
        faultable_copy::call_sigaction_by(urxe_preload::sigaction);
        urxe_preload::fault_signals_are(faultable_copy::set_wanted);
        urxe_preload::before_failures(tell_held);
        urxe_preload::hold_folder(urxe_options::RUN_USERS_LOCK);
        if let Some(folder) = urxe_preload::folder() {
            record_in(Path::new(OsStr::from_bytes(folder)).join(urxe_options::RUN_EXPLANATIONS));
        }
        urxe_preload::when_devices_are_looked_for(look_for_devices);
        urxe_preload::counters_are(&crate::status::sysfs::LIVE);
        urxe_preload::netlink_is(&kernel::netlink::NETLINK);
        urxe_preload::nodes_are(&kernel::umad::hook::NODES);
    } else {
        urxe_preload::remember_standard_error();
    }
    urxe_runtime::fork::set_is_interrupted(call_depth::is_interrupted);
    faultable_copy::before_default_actions(tell_held);
    messages::write_by(StandardError {
        expect_text: urxe_preload::expect_text_on_standard_error,
        write: urxe_preload::write_to_standard_error,
    });
    register();
}

/// Makes the provider known to every copy of libibverbs in this process that does not know it yet. Again does no harm.
///
/// A copy that is loaded later runs no constructor of ours, even if it loads this library, which is loaded already. So this is
/// called when a copy is about to list devices, too: by the preloaded `socket`, or by the [`stub`] that it loads.
extern "C" fn register() {
    let _guard = CancelGuard::new();
    let _ = guarded(|| {
        // Before the search: what is loaded meanwhile is found next time.
        let loads = without_fork(loads);
        if LOADS.load(Ordering::Acquire) != loads {
            // A library that is preloaded, or loaded by a test or a curious program, may find none.
            for copy in copies() {
                add(&copy);
            }
            LOADS.store(loads, Ordering::Release);
        }
        kernel::ucma::hook::install_if_loaded();
        Ok(())
    });
}

/// The constructor of the [`stub`].
#[unsafe(no_mangle)]
extern "C" fn urxe_register_provider() {
    stub::stay_loaded();
    register();
    stub::has_told();
}

/// Called when the program is about to list devices.
extern "C" fn look_for_devices() {
    let _ = guarded(|| {
        miss_folder();
        Ok(())
    });
    register();
}

/// Says once that the folder of `urxe run`, and with it every device, is not there.
fn miss_folder() {
    static SAID: AtomicBool = AtomicBool::new(false);
    let Some(folder) = urxe_preload::folder().map(|folder| Path::new(OsStr::from_bytes(folder))) else { return };
    if !folder.is_dir() && !SAID.swap(true, Ordering::Relaxed) {
        complain(&format_args!(
            "no devices: {} is not there, which `urxe run` made; where /dev/shm is mounted anew, use `urxe run` in there",
            folder.display()
        ));
    }
}

/// Every copy that is loaded. Their files have any name: who bundles a library gives it one of its own.
fn copies() -> Vec<Exporter> {
    let functions = Pabi::ALL.map(Pabi::register_symbol);
    let mut copies = without_fork(|| exporters(&functions));
    // Of a release that we do not know; other objects define this function as well, to stand in front of libibverbs.
    let named = |copy: &Exporter| file_name(&copy.path).starts_with(b"libibverbs");
    let unknown = without_fork(|| exporters(&[c"ibv_get_device_list"])).into_iter().filter(named);
    let known: Vec<CString> = copies.iter().map(|copy| copy.path.clone()).collect();
    copies.extend(unknown.filter(|copy| !known.contains(&copy.path)));
    copies
}

/// Registers the provider with one copy.
fn add(copy: &Exporter) {
    let is_known = |all: &mut Vec<&Registration>| all.iter().any(|one| one.library.address() as usize == copy.function);
    if REGISTRATIONS.with(is_known) || REFUSED.with(|refused| refused.contains(&copy.path)) {
        return;
    }
    let library = match Libibverbs::loaded(&copy.path) {
        Ok(library) => library,
        // Unloaded meanwhile.
        Err(LookupError::NotLoaded) => return,
        Err(error) => return refuse(&copy.path, &error),
    };
    // Whoever has loaded this library may close it, and libibverbs does not forget it then.
    stub::stay_loaded();
    urxe_runtime::fork::notice();
    if let Err(error) = kernel::hook::install(library.address()) {
        return refuse(&copy.path, &format_args!("cannot divert libibverbs' system calls: {error}"));
    }
    let registration: &Registration = Box::leak(Box::new(Registration { ops: OPS, library }));
    REGISTRATIONS.with(|all| {
        if !all.iter().any(|one| one.library.address() == registration.library.address()) {
            all.push(registration);
            // Here, so that another thread which finds the copy known finds it registered: it adds to a list, and no more.
            // SAFETY: the ops have the same shape in every version, and their box is leaked. The functions and the table that they name are
            // this library's, which stays loaded from the call above on.
            unsafe { registration.library.register_driver(&registration.ops) };
        }
    });
}

/// Says once that a copy gets no devices, and why.
fn refuse(path: &CStr, why: &dyn std::fmt::Display) {
    let is_new = REFUSED.with(|refused| {
        let is_new = !refused.iter().any(|known| **known == *path);
        if is_new {
            refused.push(path.to_owned());
        }
        is_new
    });
    if is_new {
        complain(&format_args!("{}: {why}", path.to_string_lossy()));
    }
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
    let _guard = CancelGuard::new();
    guarded(|| {
        // SAFETY: libibverbs passes a device it has filled in.
        let name = unsafe { name((&raw const (*sysfs_dev).ibdev_name).cast()) };
        // SAFETY: as above.
        let dir = unsafe { self::name((&raw const (*sysfs_dev).ibdev_path).cast()) };
        if let (Some(name), Some(dir)) = (&name, &dir) {
            device::remember_guid(name, Path::new(dir));
        }
        register();
        stub::unload();
        // From now on verbs may be called, and some may have to fail.
        let _ = urxe_diag::settings::get();
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
