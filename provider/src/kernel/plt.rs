//! The slots through which a loaded object calls functions of others, and how to put something else into one.
//!
//! An object that calls `write` does so through a word of its own, which the loader fills in (a `JUMP_SLOT` relocation of
//! its PLT, or a `GLOB_DAT` one of its GOT when it was built with `-fno-plt`). Replacing that word diverts the calls of
//! this one object; the rest of the process does not notice.

use std::ffi::{CStr, c_int, c_void};
use std::fmt;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{Elf64_Phdr, Elf64_Sym};

use super::Errno;

mod exports;

pub use exports::{Exporter, exporters, file_name, files, loads};

#[cfg(target_arch = "x86_64")]
mod relocation {
    /// `R_X86_64_JUMP_SLOT`
    pub(super) const JUMP_SLOT: u32 = 7;
    /// `R_X86_64_GLOB_DAT`
    pub(super) const GLOB_DAT: u32 = 6;
}
#[cfg(target_arch = "aarch64")]
mod relocation {
    /// `R_AARCH64_JUMP_SLOT`
    pub(super) const JUMP_SLOT: u32 = 1026;
    /// `R_AARCH64_GLOB_DAT`
    pub(super) const GLOB_DAT: u32 = 1025;
}

/// `Elf64_Dyn`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Dyn {
    tag: u64,
    value: u64,
}

/// `Elf64_Rela`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Rela {
    offset: u64,
    info: u64,
    addend: i64,
}

/// Tags of [`Dyn`] (`<elf.h>`).
mod tag {
    pub(super) const NULL: u64 = 0;
    pub(super) const PLTRELSZ: u64 = 2;
    pub(super) const STRTAB: u64 = 5;
    pub(super) const SYMTAB: u64 = 6;
    pub(super) const RELA: u64 = 7;
    pub(super) const RELASZ: u64 = 8;
    pub(super) const STRSZ: u64 = 10;
    pub(super) const PLTREL: u64 = 20;
    pub(super) const JMPREL: u64 = 23;
    pub(super) const GNU_HASH: u64 = 0x6fff_fef5;
}

/// Why a slot could not be replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PltError {
    /// No loaded object is at the address.
    NoObject,
    /// The object has no dynamic section of the kind we can read.
    NotDynamic,
    /// The object does not call this function through a slot.
    NoSlot(&'static CStr),
    /// The page of the slot could not be made writable.
    Protect(Errno),
}

impl fmt::Display for PltError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoObject => f.write_str("no loaded object is at this address"),
            Self::NotDynamic => f.write_str("the object has no relocation table"),
            Self::NoSlot(name) => write!(f, "the object does not call {}", name.to_string_lossy()),
            Self::Protect(errno) => write!(f, "the object's function table cannot be made writable: {errno}"),
        }
    }
}

impl std::error::Error for PltError {}

/// A loaded object: libibverbs, say. It must stay loaded for as long as this is used.
#[derive(Clone, Debug)]
pub struct Object {
    base: usize,
    /// Lowest and highest address, code and data.
    extent: Range<usize>,
    /// Addresses that the loader makes read-only after relocation (`PT_GNU_RELRO`).
    relro: Range<usize>,
    jmprel: Table,
    rela: Table,
    symtab: usize,
    strtab: Table,
    /// 0 if there is none.
    gnu_hash: usize,
}

/// A table in the object: address and bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Table {
    address: usize,
    size: usize,
}

/// A slot for one function.
#[derive(Clone, Copy, Debug)]
pub struct Slot<'a> {
    object: &'a Object,
    address: usize,
}

/// Page protection is changed, used and restored: one at a time.
static PROTECTION: Mutex<()> = Mutex::new(());

impl Object {
    /// The object that an address belongs to.
    pub fn containing(address: *const c_void) -> Result<Self, PltError> {
        let mut search = Search { address: address as usize, found: Err(PltError::NoObject) };
        // SAFETY: the callback matches its contract, and `search` outlives the call.
        unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
        search.found
    }

    /// # Safety
    /// `headers` are those of an object loaded at `base`.
    unsafe fn new(base: usize, headers: &[Elf64_Phdr]) -> Result<Self, PltError> {
        let range = |header: &Elf64_Phdr| {
            let start = base.wrapping_add(word(header.p_vaddr));
            start..start.wrapping_add(word(header.p_memsz))
        };
        let segment = |kind| headers.iter().find(|header| header.p_type == kind).map(range);
        let loads = || headers.iter().filter(|header| header.p_type == libc::PT_LOAD).map(range);
        let start = loads().map(|load| load.start).min().ok_or(PltError::NotDynamic)?;
        let end = loads().map(|load| load.end).max().ok_or(PltError::NotDynamic)?;
        let extent = start..end;
        let dynamic = segment(libc::PT_DYNAMIC).ok_or(PltError::NotDynamic)?;

        let mut object = Self {
            base,
            extent,
            relro: segment(libc::PT_GNU_RELRO).unwrap_or_default(),
            jmprel: Table::default(),
            rela: Table::default(),
            symtab: 0,
            strtab: Table::default(),
            gnu_hash: 0,
        };
        let mut plt_is_rela = true;
        for index in 0..dynamic.len() / size_of::<Dyn>() {
            // SAFETY: inside the dynamic segment, which the loader has mapped.
            let entry = unsafe { *(dynamic.start as *const Dyn).add(index) };
            match entry.tag {
                tag::NULL => break,
                tag::JMPREL => object.jmprel.address = object.pointer(entry.value),
                tag::PLTRELSZ => object.jmprel.size = word(entry.value),
                tag::PLTREL => plt_is_rela = entry.value == tag::RELA,
                tag::RELA => object.rela.address = object.pointer(entry.value),
                tag::RELASZ => object.rela.size = word(entry.value),
                tag::SYMTAB => object.symtab = object.pointer(entry.value),
                tag::STRTAB => object.strtab.address = object.pointer(entry.value),
                tag::GNU_HASH => object.gnu_hash = object.pointer(entry.value),
                tag::STRSZ => object.strtab.size = word(entry.value),
                _ => {}
            }
        }
        if object.symtab == 0 || object.strtab.address == 0 || !plt_is_rela {
            return Err(PltError::NotDynamic);
        }
        Ok(object)
    }

    /// glibc turns the dynamic section's offsets into addresses, other loaders leave them.
    fn pointer(&self, value: u64) -> usize {
        let value = word(value);
        if value < self.base { self.base.wrapping_add(value) } else { value }
    }

    /// The slot through which this object calls `name`.
    pub fn slot(&self, name: &'static CStr) -> Result<Slot<'_>, PltError> {
        [(self.jmprel, relocation::JUMP_SLOT), (self.rela, relocation::GLOB_DAT)]
            .into_iter()
            .find_map(|(table, kind)| self.find(table, kind, name))
            .ok_or(PltError::NoSlot(name))
    }

    fn find(&self, table: Table, kind: u32, name: &CStr) -> Option<Slot<'_>> {
        (0..table.size / size_of::<Rela>()).find_map(|index| {
            // SAFETY: inside a table of the object, which the loader has mapped.
            let rela = unsafe { *(table.address as *const Rela).add(index) };
            // ELF64_R_TYPE and ELF64_R_SYM are the lower and the upper half.
            let (found, symbol) = (rela.info & 0xffff_ffff, rela.info >> 32);
            if found != u64::from(kind) || self.symbol_name(symbol)? != name {
                return None;
            }
            let address = self.base.wrapping_add(word(rela.offset));
            (self.extent.contains(&address) && address.is_multiple_of(size_of::<usize>()))
                .then_some(Slot { object: self, address })
        })
    }

    fn symbol_name(&self, index: u64) -> Option<&CStr> {
        // SAFETY: the loader has used this index, taken from the object's relocations, itself.
        let symbol = unsafe { &*(self.symtab as *const Elf64_Sym).add(word(index)) };
        let offset = usize::try_from(symbol.st_name).ok().filter(|&offset| offset < self.strtab.size)?;
        // SAFETY: inside the string table, whose last byte is zero.
        Some(unsafe { CStr::from_ptr((self.strtab.address + offset) as *const libc::c_char) })
    }
}

impl Slot<'_> {
    fn word(&self) -> &AtomicUsize {
        // SAFETY: an aligned word in the object's data, which only the loader writes otherwise, once, with a single
        // store.
        unsafe { AtomicUsize::from_ptr(self.address as *mut usize) }
    }

    /// Function that calls reach now. `None` while the slot still leads back into the object's own PLT: the function has not been
    /// called, and the loader would overwrite what we put there if it were called through that.
    pub fn target(&self) -> Option<usize> {
        let target = self.word().load(Ordering::Acquire);
        (target != 0 && !self.object.extent.contains(&target)).then_some(target)
    }

    /// Makes calls go to `target`.
    ///
    /// # Safety
    /// `target` is a function with the signature of the one that it replaces, and stays for as long as the object.
    pub unsafe fn replace(&self, target: usize) -> Result<(), PltError> {
        let _one_at_a_time = PROTECTION.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // SAFETY: no arguments that matter.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) })
            .ok()
            .filter(|page| page.is_power_of_two())
            .ok_or(PltError::Protect(Errno(libc::EINVAL)))?;
        let start = self.address & !(page - 1);
        let protect = |protection: c_int| {
            // SAFETY: the page is the object's own data; nothing is taken away that anyone has.
            if unsafe { libc::mprotect(start as *mut c_void, page, protection) } == 0 {
                Ok(())
            } else {
                Err(PltError::Protect(Errno::last()))
            }
        };
        protect(libc::PROT_READ | libc::PROT_WRITE)?;
        self.word().store(target, Ordering::Release);
        // The loader protects whole pages of what it says is to be read-only (glibc's _dl_protect_relro).
        if start >= self.object.relro.start & !(page - 1) && start + page <= self.object.relro.end & !(page - 1) {
            protect(libc::PROT_READ)?;
        }
        Ok(())
    }
}

/// ELF says 64 bits; so are our addresses (see `relocation`: 64-bit machines only).
#[expect(clippy::cast_possible_truncation, reason = "asserted: nothing is cut off")]
const fn word(value: u64) -> usize {
    const { assert!(usize::BITS == 64) };
    value as usize
}

struct Search {
    address: usize,
    found: Result<Object, PltError>,
}

/// Callback of `dl_iterate_phdr`.
unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: `data` is the `Search` of `Object::containing`, and `info` is valid during the callback.
    let (search, info) = unsafe { (&mut *data.cast::<Search>(), &*info) };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the loader's own table.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let base = word(info.dlpi_addr);
    let inside = headers.iter().filter(|header| header.p_type == libc::PT_LOAD).any(|load| {
        let start = base.wrapping_add(word(load.p_vaddr));
        (start..start.wrapping_add(word(load.p_memsz))).contains(&search.address)
    });
    if !inside {
        return 0;
    }
    // SAFETY: these are its headers, and this is where it is loaded.
    search.found = unsafe { Object::new(base, headers) };
    1
}

#[cfg(test)]
mod tests;
