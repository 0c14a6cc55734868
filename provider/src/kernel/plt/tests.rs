use super::*;

/// libibverbs' own call of opendir(3), which no other test touches.
const NAME: &CStr = c"opendir";

fn libibverbs() -> *const c_void {
    // SAFETY: C strings; the library's constructors only set up its own state.
    let address = unsafe {
        let handle = libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW);
        assert!(!handle.is_null(), "libibverbs.so.1 is not installed");
        libc::dlsym(handle, c"ibv_get_device_list".as_ptr())
    };
    assert!(!address.is_null());
    address
}

/// `r--p` and the like, of the mapping that an address is in.
fn protection(address: usize) -> String {
    // Other tests have slots of the same page replaced, which is writable meanwhile.
    let _nobody_replaces = PROTECTION.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| {
        let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let parse = |hex| usize::from_str_radix(hex, 16).unwrap();
        (parse(start)..parse(end)).contains(&address)
    });
    line.unwrap().split(' ').nth(1).unwrap().to_owned()
}

#[test]
fn a_slot_leads_to_libc_and_can_be_replaced() {
    unsafe extern "C" fn instead(_: *const libc::c_char) -> *mut libc::DIR {
        std::ptr::null_mut()
    }
    let object = Object::containing(libibverbs()).unwrap();
    let slot = object.slot(NAME).unwrap();
    let before = protection(slot.address);
    let original = slot.target().unwrap();
    assert_eq!(original, libc::opendir as *const () as usize);

    // SAFETY: of the same type; put back before anyone opens a folder.
    unsafe { slot.replace(instead as *const () as usize) }.unwrap();
    assert_eq!(slot.target(), Some(instead as *const () as usize));
    assert_eq!(protection(slot.address), before);
    // SAFETY: what was there.
    unsafe { slot.replace(original) }.unwrap();
    assert_eq!(slot.target(), Some(original));
}

#[test]
fn exporters_are_found_by_what_they_define() {
    let address = libibverbs();
    let found = exporters(&[c"no_such_function", c"ibv_get_device_list"]);
    // SAFETY: all-zero is a value of this plain C struct, which dladdr(3) fills.
    let object = unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        assert_ne!(libc::dladdr(address, &raw mut info), 0);
        CStr::from_ptr(info.dli_fname)
    };
    // The newest of several versions, as dlsym(3) has it, or an older one: in the same object.
    let [exporter] = &found[..] else { panic!("not one: {found:?}") };
    assert_eq!(&*exporter.path, object);
    assert!(Object::containing(address).unwrap().extent.contains(&exporter.function));
    // Who only calls a function does not define it.
    assert!(exporters(&[c"malloc"]).iter().all(|exporter| !exporter.path.to_bytes().ends_with(b"libibverbs.so.1")));
    assert!(exporters(&[c"no_such_function"]).is_empty());
}

#[test]
fn every_function_of_libc_that_dlsym_finds_is_found() {
    // Of several buckets and chains, of which some have more than one symbol.
    for name in [c"malloc", c"free", c"opendir", c"qsort", c"getenv", c"dl_iterate_phdr", c"printf", c"abort"] {
        // Behind this program, which exports the functions that `urxe run` stands in front of.
        // SAFETY: a name.
        let address = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        let exporters = exporters(&[name]);
        assert!(exporters.iter().any(|exporter| exporter.function == address as usize), "{name:?}: {exporters:?}");
    }
}

#[test]
fn missing_slots_and_objects_are_not_found() {
    let object = Object::containing(libibverbs()).unwrap();
    assert_eq!(object.slot(c"ptrace").err(), Some(PltError::NoSlot(c"ptrace")));
    assert_eq!(Object::containing(std::ptr::null()).err(), Some(PltError::NoObject));
}
