//! Through the libibverbs of this machine: its own verbs, on a device that only answers commands.

use std::any::Any;
use std::ffi::CStr;
use std::io::Read as _;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use urxe_ffi::driver::device::verbs_device;
use urxe_ffi::private::Libibverbs;
use urxe_ffi::verbs::{ibv_comp_channel, ibv_context, ibv_gid, ibv_gid_entry, verbs_context};
use urxe_wire::Gid;

use super::*;
use crate::kernel::uverbs::{GidEntry, GidType};

type CreateCompChannel = unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_comp_channel;
type DestroyCompChannel = unsafe extern "C" fn(*mut ibv_comp_channel) -> c_int;
type QueryGid = unsafe extern "C" fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
type QueryGidTable = unsafe extern "C" fn(*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize;

const GID: Gid = Gid::new([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1]);

/// Held by each test that attaches a file: the number of one that is closed is then the next file's, which may be another test's.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Hands out pipes, and remembers their other ends.
#[derive(Default)]
struct Pipes {
    writers: Mutex<Vec<(RawFd, OwnedFd)>>,
}

impl Device for Pipes {
    fn create_comp_channel(&self) -> Result<OwnedFd, Errno> {
        let (reader, writer) = std::io::pipe().map_err(|_| Errno::last())?;
        let reader = OwnedFd::from(reader);
        self.writers.lock().unwrap().push((reader.as_raw_fd(), writer.into()));
        Ok(reader)
    }

    fn alloc_async_fd(&self) -> Result<OwnedFd, Errno> {
        self.create_comp_channel()
    }

    fn gid(&self, port: u32, index: u32) -> Result<GidEntry, Errno> {
        match (port, index) {
            (1, 0) => Ok(GidEntry { gid: GID, index, port, gid_type: GidType::RoceV2, netdev_ifindex: 1 }),
            (1, 1) => Err(Errno(libc::ENODATA)),
            _ => Err(Errno(libc::EINVAL)),
        }
    }

    fn gid_table(&self) -> Vec<GidEntry> {
        self.gid(1, 0).into_iter().collect()
    }

    fn before_close(&self, fd: RawFd) -> Option<Arc<dyn Any + Send + Sync>> {
        self.writers.lock().unwrap().retain(|&(reader, _)| reader != fd);
        None
    }
}

fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: C strings; the library's constructors only set up its own state.
    let address = unsafe {
        let handle = libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW);
        assert!(!handle.is_null(), "libibverbs.so.1 is not installed");
        libc::dlsym(handle, name.as_ptr())
    };
    assert!(!address.is_null(), "{name:?}");
    address
}

/// An open context of the library, with a device and a file that nobody else has.
struct Context {
    library: Libibverbs,
    context: *mut verbs_context,
    _device: Box<verbs_device>,
}

impl Context {
    /// `early`: the device answers before libibverbs asks whether commands may come as ioctls.
    fn open(device: &Arc<Pipes>, early: bool) -> Self {
        let address = symbol(c"ibv_create_comp_channel");
        install(address).unwrap();
        install(address).unwrap();
        let library = Libibverbs::loaded(c"libibverbs.so.1").unwrap();
        // SAFETY: integers, pointers and arrays of them: all-zero is a value.
        let mut verbs_device: Box<verbs_device> = Box::new(unsafe { std::mem::zeroed() });
        verbs_device.refcount = 1;
        let file = std::fs::File::options().read(true).write(true).open("/dev/null").unwrap().into_raw_fd();
        if early {
            attach(file, Arc::clone(device) as Arc<dyn Device>);
        }
        // SAFETY: the device outlives the context.
        let context = unsafe { library.init_and_alloc_context(&raw mut verbs_device.device, file, 0, 0) };
        assert!(!context.is_null());
        if !early {
            attach(file, Arc::clone(device) as Arc<dyn Device>);
        }
        Self { library, context, _device: verbs_device }
    }

    fn public(&self) -> *mut ibv_context {
        // SAFETY: the library made it.
        unsafe { self.library.public(self.context) }
    }

    fn file(&self) -> RawFd {
        // SAFETY: as above.
        unsafe { (*self.public()).cmd_fd }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let file = self.file();
        // SAFETY: the library made it, with calloc, and nobody uses it any more.
        unsafe {
            self.library.uninit_context(self.context);
            libc::free(self.context.cast());
        }
        assert!(device_of(file).is_none(), "closing the file detaches it");
    }
}

/// The four verbs that go to the kernel, by whichever way libibverbs has chosen.
fn talk_to_the_kernel(early: bool) {
    let _alone = alone();
    let device = Arc::new(Pipes::default());
    let context = Context::open(&device, early);
    // SAFETY: libibverbs' functions with their types, called as its man pages say.
    unsafe {
        let create = std::mem::transmute::<*mut c_void, CreateCompChannel>(symbol(c"ibv_create_comp_channel"));
        let destroy = std::mem::transmute::<*mut c_void, DestroyCompChannel>(symbol(c"ibv_destroy_comp_channel"));
        let channel = create(context.public());
        assert!(!channel.is_null(), "{}", Errno::last());
        {
            let writers = device.writers.lock().unwrap();
            assert_eq!(writers.len(), 1);
            assert_eq!((*channel).fd, writers[0].0);
            let mut writer = std::fs::File::from(writers[0].1.try_clone().unwrap());
            std::io::Write::write_all(&mut writer, &7_u64.to_ne_bytes()).unwrap();
        }
        let mut event = [0; 8];
        std::fs::File::from_raw_fd(libc::dup((*channel).fd)).read_exact(&mut event).unwrap();
        assert_eq!(u64::from_ne_bytes(event), 7);
        assert_eq!(destroy(channel), 0);
        assert!(device.writers.lock().unwrap().is_empty(), "the device hears of the close");

        let query_gid = std::mem::transmute::<*mut c_void, QueryGid>(symbol(c"ibv_query_gid"));
        let mut gid: ibv_gid = std::mem::zeroed();
        assert_eq!(query_gid(context.public(), 1, 0, &raw mut gid), 0);
        assert_eq!(gid.raw, GID.octets());
        assert_eq!(query_gid(context.public(), 1, 1, &raw mut gid), 0);
        assert_eq!(gid.raw, [0; 16], "an empty row is a zero GID");
        assert_eq!(query_gid(context.public(), 1, 2, &raw mut gid), -1);

        let query_table = std::mem::transmute::<*mut c_void, QueryGidTable>(symbol(c"_ibv_query_gid_table"));
        let mut entries: [ibv_gid_entry; 3] = std::mem::zeroed();
        let count = query_table(context.public(), entries.as_mut_ptr(), 3, 0, size_of::<ibv_gid_entry>());
        assert_eq!(count, 1);
        assert_eq!(entries[0].gid.raw, GID.octets());
        assert_eq!((entries[0].gid_type, entries[0].ndev_ifindex), (2, 1));
    }
}

#[test]
fn libibverbs_finds_its_kernel_by_write() {
    talk_to_the_kernel(false);
}

#[test]
fn libibverbs_finds_its_kernel_by_ioctl() {
    talk_to_the_kernel(true);
}

#[test]
fn other_descriptors_are_left_alone() {
    let _alone = alone();
    let device = Arc::new(Pipes::default());
    let context = Context::open(&device, false);
    // The same context, but the file is nobody's now: the command goes to /dev/null itself, which takes it.
    detach(context.file());
    Errno(libc::EDOM).set();
    // SAFETY: libibverbs' function with its type. The channel's descriptor is garbage: only the struct is freed.
    unsafe {
        let create = std::mem::transmute::<*mut c_void, CreateCompChannel>(symbol(c"ibv_create_comp_channel"));
        let channel = create(context.public());
        assert!(!channel.is_null());
        libc::free(channel.cast());
    }
    assert!(device.writers.lock().unwrap().is_empty());
    assert_eq!(Errno::last(), Errno(libc::EDOM));
    let mut pipe = [0; 2];
    // SAFETY: room for two descriptors; the hooks are called as write(2) and close(2) are.
    unsafe {
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        assert_eq!(write_hook(pipe[1], c"urxe".as_ptr().cast(), 4), 4);
        assert_eq!(close_hook(pipe[1]), 0);
        let mut text = String::new();
        std::fs::File::from_raw_fd(pipe[0]).read_to_string(&mut text).unwrap();
        assert_eq!(text, "urxe");
        assert_eq!(close_hook(-1), -1);
    }
    assert_eq!(Errno::last(), Errno(libc::EBADF));
}

/// A device whose answers come to a cancellation point.
struct Slow(Mutex<usize>);

impl Device for Slow {
    fn create_comp_channel(&self) -> Result<OwnedFd, Errno> {
        let mut calls = self.0.lock().unwrap();
        // SAFETY: no entries.
        unsafe { libc::poll(std::ptr::null_mut(), 0, 0) };
        *calls += 1;
        Err(Errno(libc::EMFILE))
    }

    fn alloc_async_fd(&self) -> Result<OwnedFd, Errno> {
        Err(Errno(libc::EMFILE))
    }

    fn gid(&self, _port: u32, _index: u32) -> Result<GidEntry, Errno> {
        Err(Errno(libc::EINVAL))
    }

    fn gid_table(&self) -> Vec<GidEntry> {
        Vec::new()
    }

    fn before_close(&self, _fd: RawFd) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }
}

/// A thread that is to be cancelled is, but not while a device answers: its locks would stay taken.
#[test]
fn answers_are_no_cancellation_points() {
    let _alone = alone();
    let (file, _other) = std::io::pipe().unwrap();
    let fd = file.as_raw_fd();
    let device = Arc::new(Slow(Mutex::new(0)));
    attach(fd, Arc::clone(&device) as Arc<dyn Device>);
    let asking = std::thread::spawn(move || {
        let mut command = [0_u8; 16];
        command[..4].copy_from_slice(&urxe_ffi::uapi::IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL.to_ne_bytes());
        command[4..6].copy_from_slice(&4_u16.to_ne_bytes());
        command[6..8].copy_from_slice(&1_u16.to_ne_bytes());
        // SAFETY: this thread; a buffer of this length.
        let written = unsafe {
            libc::pthread_cancel(libc::pthread_self());
            write_hook(fd, command.as_ptr().cast(), command.len())
        };
        urxe_net::cancellation::disable();
        (written, Errno::last())
    });
    assert_eq!(asking.join().unwrap(), (-1, Errno(libc::EMFILE)));
    assert_eq!(*device.0.lock().unwrap(), 1);
    detach(fd);
}

/// A signal handler that ends the program while one is answered finds its locks taken.
#[test]
fn a_call_is_under_way_while_it_is_answered() {
    use crate::kernel::call_depth::{inside, is_interrupted, is_kernel_call_interrupted};
    let refuse = || -> Result<(), Errno> { if is_interrupted() { Err(Errno(libc::EDOM)) } else { Ok(()) } };
    assert!(!is_interrupted());
    assert!(aside(|| aside(is_interrupted) && is_interrupted() && is_kernel_call_interrupted()));
    assert!(inside(|_| is_interrupted() && !is_kernel_call_interrupted()));
    assert_eq!(answer(Err(()), || refuse().map(Ok)), Err(()));
    assert_eq!(answer(7, || panic!("on purpose")), 7);
    assert!(!is_interrupted() && !is_kernel_call_interrupted());
}
