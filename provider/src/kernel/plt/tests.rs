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
fn what_is_loaded_is_known() {
    libibverbs();
    assert!(is_loaded(c"libibverbs.so") && !is_loaded(c"ibverbs.so"));
}

#[test]
fn what_is_not_there_is_not_found() {
    let object = Object::containing(libibverbs()).unwrap();
    assert_eq!(object.slot(c"ptrace").err(), Some(PltError::NoSlot(c"ptrace")));
    assert_eq!(Object::containing(std::ptr::null()).err(), Some(PltError::NoObject));
}
