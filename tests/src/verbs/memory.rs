//! Memory, protection domains and memory regions.

use std::fs::File;
use std::os::fd::{FromRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use urxe_ffi::functions as f;
use urxe_ffi::verbs as v;

use super::context::Context;
use super::handle::{Errno, Handle};
use super::wr::Remote;

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// Rights to do whatever may be done with a region.
pub const ALL_ACCESS: u32 =
    v::IBV_ACCESS_LOCAL_WRITE | v::IBV_ACCESS_REMOTE_WRITE | v::IBV_ACCESS_REMOTE_READ | v::IBV_ACCESS_REMOTE_ATOMIC;

/// A mapping of its own, with nothing mapped before and behind it.
#[derive(Debug)]
pub struct Pages {
    addr: usize,
    len: usize,
    mapped: AtomicBool,
}

/// Where the next [`Pages`] go: a range that neither the kernel nor libc picks by itself, so that what was unmapped
/// stays unmapped, and that AddressSanitizer and ThreadSanitizer leave to programs.
static NEXT: AtomicUsize = AtomicUsize::new(0x5500_0000_0000);

impl Pages {
    /// Zeroed memory for `len` bytes, from the start of a page.
    pub fn new(len: usize) -> Arc<Self> {
        Self::map(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    /// Maps pages of a file without a name, which may be truncated.
    pub fn of_file(len: usize) -> (Arc<Self>, File) {
        // SAFETY: a string.
        let fd = unsafe { libc::memfd_create(c"pages".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0, "memfd_create: {}", Errno::last());
        // SAFETY: new, and ours.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(len.next_multiple_of(PAGE) as u64).expect("a file in memory");
        (Self::map(len, libc::MAP_SHARED, fd), file)
    }

    fn map(len: usize, flags: libc::c_int, fd: RawFd) -> Arc<Self> {
        let len = len.max(1).next_multiple_of(PAGE);
        let addr = NEXT.fetch_add(len + PAGE, Ordering::Relaxed);
        let wanted = std::ptr::with_exposed_provenance_mut(addr);
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, flags | libc::MAP_FIXED_NOREPLACE);
        // SAFETY: replaces no mapping.
        let got = unsafe { libc::mmap(wanted, len, protection, flags, fd, 0) };
        assert_eq!(got.expose_provenance(), addr, "mmap: {}", Errno::last());
        Arc::new(Self { addr, len, mapped: AtomicBool::new(true) })
    }

    /// The first address.
    pub fn addr(&self) -> u64 {
        self.addr as u64
    }

    /// Bytes, a multiple of [`PAGE`].
    pub fn size(&self) -> usize {
        self.len
    }

    /// Stores bytes.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: within the mapping (checked), which is ours and writable; only the device writes there too.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(offset, bytes.len()), bytes.len()) };
    }

    /// The bytes there.
    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // SAFETY: as for `write`.
        unsafe { std::ptr::copy_nonoverlapping(self.at(offset, len), bytes.as_mut_ptr(), len) };
        bytes
    }

    /// The number there, in the host's byte order.
    pub fn read_u64(&self, offset: usize) -> u64 {
        self.read(offset, 8).try_into().map_or(0, u64::from_ne_bytes)
    }

    /// Takes the memory away under whatever is registered there.
    pub fn unmap(&self) {
        assert!(self.mapped.swap(false, Ordering::AcqRel), "unmapped twice");
        // SAFETY: our mapping; accesses from here fail the assertion in `at`.
        assert_eq!(unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(self.addr), self.len) }, 0);
    }

    /// Takes away what is at `offset`, a multiple of [`PAGE`], and behind it.
    pub fn unmap_from(&self, offset: usize) {
        let tail = std::ptr::with_exposed_provenance_mut(self.addr + offset);
        // SAFETY: a part of our mapping; unmapping it once more at the end does no harm (munmap(2)).
        assert_eq!(unsafe { libc::munmap(tail, self.len - offset) }, 0);
    }

    /// Changes the protection (`PROT_READ`, …).
    pub fn protect(&self, protection: libc::c_int) {
        self.protect_from(0, protection);
    }

    /// Changes the protection of what is at `offset`, a multiple of [`PAGE`], and behind it.
    pub fn protect_from(&self, offset: usize, protection: libc::c_int) {
        let tail = std::ptr::with_exposed_provenance_mut(self.addr + offset);
        // SAFETY: a part of our mapping.
        let returned = unsafe { libc::mprotect(tail, self.len - offset, protection) };
        assert_eq!(returned, 0, "mprotect: {}", Errno::last());
    }

    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(self.mapped.load(Ordering::Acquire) && offset + len <= self.len, "not in these pages");
        std::ptr::with_exposed_provenance_mut(self.addr + offset)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if *self.mapped.get_mut() {
            self.unmap();
        }
    }
}

/// Bytes that differ from place to place and from seed to seed.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    };
    (0..len).map(|_| next()).collect()
}

/// A protection domain.
pub struct Pd {
    handle: Handle<v::ibv_pd>,
    context: Arc<Context>,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for Pd {}
// SAFETY: as above.
unsafe impl Sync for Pd {}

impl Pd {
    /// `ibv_alloc_pd(3)`.
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>, Errno> {
        // SAFETY: a live context, and a new domain of it.
        unsafe { Self::of_raw(context, f::ibv_alloc_pd(context.raw())) }
    }

    /// Takes a domain that a verb returned: a pointer, or null with `errno` set.
    ///
    /// # Safety
    /// `raw` is null or a domain of the context that nobody else will free.
    pub unsafe fn of_raw(context: &Arc<Context>, raw: *mut v::ibv_pd) -> Result<Arc<Self>, Errno> {
        // SAFETY: the caller's promise.
        let handle = unsafe { Handle::new(raw, f::ibv_dealloc_pd)? };
        Ok(Arc::new(Self { handle, context: Arc::clone(context) }))
    }

    /// `ibv_import_pd(3)`.
    pub fn import(context: &Arc<Context>, number: u32) -> Result<Arc<Self>, Errno> {
        unsafe extern "C" fn unimport(pd: *mut v::ibv_pd) -> libc::c_int {
            // SAFETY: the owner's last use of it.
            unsafe { f::ibv_unimport_pd(pd) };
            0
        }
        // SAFETY: a live context.
        let handle = unsafe { Handle::new(f::ibv_import_pd(context.raw(), number), unimport)? };
        Ok(Arc::new(Self { handle, context: Arc::clone(context) }))
    }

    /// The number to import it by.
    pub fn number(&self) -> u32 {
        // SAFETY: a field of a live domain.
        unsafe { (*self.raw()).handle }
    }

    /// Raw pointer, for verbs that have no method here.
    pub fn raw(&self) -> *mut v::ibv_pd {
        self.handle.raw()
    }

    /// Device of the object.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Deallocates it now.
    pub fn dealloc(&self) -> Result<(), Errno> {
        self.handle.destroy()
    }
}

/// A memory region.
pub struct Mr {
    handle: Handle<v::ibv_mr>,
    pages: Option<Arc<Pages>>,
    addr: u64,
    _pd: Arc<Pd>,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}

impl Mr {
    /// Registers pages of its own.
    pub fn alloc(pd: &Arc<Pd>, len: usize, access: u32) -> Result<Self, Errno> {
        Self::of(pd, &Pages::new(len), 0, len, access)
    }

    /// Registers `len` bytes from `offset` on.
    pub fn of(pd: &Arc<Pd>, pages: &Arc<Pages>, offset: usize, len: usize, access: u32) -> Result<Self, Errno> {
        let mr = Self::of_address(pd, pages.addr() + offset as u64, len, access)?;
        Ok(Self { pages: Some(Arc::clone(pages)), ..mr })
    }

    /// Registers the first `len` bytes, to be known by addresses from `iova` on.
    pub fn of_iova(pd: &Arc<Pd>, pages: &Arc<Pages>, len: usize, iova: u64, access: u32) -> Result<Self, Errno> {
        let mr = Self::register(pd, pages.addr(), len, iova, access)?;
        Ok(Self { pages: Some(Arc::clone(pages)), ..mr })
    }

    /// Registers an address range, whatever is there.
    pub fn of_address(pd: &Arc<Pd>, addr: u64, len: usize, access: u32) -> Result<Self, Errno> {
        Self::register(pd, addr, len, addr, access)
    }

    fn register(pd: &Arc<Pd>, addr: u64, len: usize, iova: u64, access: u32) -> Result<Self, Errno> {
        let at = std::ptr::with_exposed_provenance_mut(usize::try_from(addr).map_err(|_| Errno(libc::EINVAL))?);
        // The inline function of verbs.h takes `ibv_reg_mr_iova2` when flags are not known at compile time.
        // SAFETY: a live PD. What is at the address is for the verb to find out.
        let raw = unsafe { f::ibv_reg_mr_iova2(pd.raw(), at, len, iova, access) };
        // SAFETY: just made.
        let handle = unsafe { Handle::new(raw, f::ibv_dereg_mr)? };
        Ok(Self { handle, pages: None, addr: iova, _pd: Arc::clone(pd) })
    }

    /// `ibv_import_mr(3)` of a region that starts at `addr`.
    pub fn import(pd: &Arc<Pd>, number: u32, addr: u64) -> Result<Self, Errno> {
        unsafe extern "C" fn unimport(mr: *mut v::ibv_mr) -> libc::c_int {
            // SAFETY: the owner's last use of it.
            unsafe { f::ibv_unimport_mr(mr) };
            0
        }
        // SAFETY: a live PD.
        let handle = unsafe { Handle::new(f::ibv_import_mr(pd.raw(), number), unimport)? };
        Ok(Self { handle, pages: None, addr, _pd: Arc::clone(pd) })
    }

    /// The number to import it by.
    pub fn number(&self) -> u32 {
        // SAFETY: a field of a live region.
        unsafe { (*self.handle.raw()).handle }
    }

    /// Deregisters it now.
    pub fn dereg(&self) -> Result<(), Errno> {
        self.handle.destroy()
    }

    /// Raw pointer, for verbs that have no method here.
    pub fn raw(&self) -> *mut v::ibv_mr {
        self.handle.raw()
    }

    /// L_Key of the region.
    pub fn lkey(&self) -> u32 {
        // SAFETY: a field of a live region.
        unsafe { (*self.handle.raw()).lkey }
    }

    /// R_Key of the region.
    pub fn rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.handle.raw()).rkey }
    }

    /// A scatter/gather element, also of what is not in the region.
    pub fn sge(&self, offset: usize, len: usize) -> v::ibv_sge {
        let length = u32::try_from(len).expect("a length of a test");
        v::ibv_sge { addr: self.addr.wrapping_add(offset as u64), length, lkey: self.lkey() }
    }

    /// Remote address of the byte at `offset`.
    pub fn at(&self, offset: usize) -> Remote {
        Remote { addr: self.addr.wrapping_add(offset as u64), rkey: self.rkey() }
    }

    /// Memory of the region.
    ///
    /// # Panics
    /// If it was registered by address.
    pub fn pages(&self) -> &Arc<Pages> {
        self.pages.as_ref().expect("a region of pages")
    }
}
