//! `liburxe-rdmavNN.so` as it is installed: an ELF object without code that needs `liburxe.so`, and has one of its functions
//! called when it is loaded.
//!
//! A loader runs the constructors of a library once, however often it is loaded. A process may hold several copies of
//! libibverbs (wheels bundle one), and each loads its driver when it first lists devices: by then the library may have been
//! loaded for another copy. So what a copy loads is this stub. The library unloads it when it has been told, and the next copy
//! that loads it tells the library again.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The function of `liburxe.so` that is called (`provider/src/edge/register.rs`).
pub(crate) const FUNCTION: &str = "urxe_register_provider";

/// Segments are this far apart: the largest page of the machines that we run on.
const PAGE: u64 = 0x1_0000;

#[cfg(target_arch = "x86_64")]
mod machine {
    /// `EM_X86_64`
    pub(super) const MACHINE: u16 = 62;
    /// `R_X86_64_64`
    pub(super) const ADDRESS: u64 = 1;
}
#[cfg(target_arch = "aarch64")]
mod machine {
    /// `EM_AARCH64`
    pub(super) const MACHINE: u16 = 183;
    /// `R_AARCH64_ABS64`
    pub(super) const ADDRESS: u64 = 257;
}

/// Sizes of `Elf64_Ehdr`, `Elf64_Phdr`, `Elf64_Sym`, `Elf64_Rela` and `Elf64_Dyn`.
const EHDR: u64 = 64;
const PHDR: u64 = 56;
const SYM: u64 = 24;
const RELA: u64 = 24;
const DYN: u64 = 16;

/// Tags of the dynamic section (`<elf.h>`).
mod tag {
    pub(super) const NULL: u64 = 0;
    pub(super) const NEEDED: u64 = 1;
    pub(super) const HASH: u64 = 4;
    pub(super) const STRTAB: u64 = 5;
    pub(super) const SYMTAB: u64 = 6;
    pub(super) const RELA: u64 = 7;
    pub(super) const RELASZ: u64 = 8;
    pub(super) const RELAENT: u64 = 9;
    pub(super) const STRSZ: u64 = 10;
    pub(super) const SYMENT: u64 = 11;
    pub(super) const INIT_ARRAY: u64 = 25;
    pub(super) const INIT_ARRAYSZ: u64 = 27;
}

/// Types and flags of program headers (`PT_*`, `PF_*`), and the type of the file (`ET_DYN`).
const READ: u32 = 4;
const READ_WRITE: u32 = 6;
const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const GNU_STACK: u32 = 0x6474_e551;
const SHARED_OBJECT: u16 = 3;

/// Program headers: what is only read, what is written, the dynamic section, and a stack that is not executable.
const SEGMENTS: u16 = 4;

/// Little-endian numbers, one after the other.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn half(&mut self, value: u16) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn word(&mut self, value: u32) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn long(&mut self, value: u64) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn align(&mut self, multiple: usize) {
        self.0.resize(self.0.len().next_multiple_of(multiple), 0);
    }

    const fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn segment(&mut self, kind: u32, flags: u32, offset: u64, address: u64, size: u64, align: u64) {
        self.word(kind).word(flags).long(offset).long(address).long(address).long(size).long(size).long(align);
    }
}

/// The file's content, for the library at this absolute path.
pub(crate) fn elf(library: &Path) -> Vec<u8> {
    // Strings: nothing, the library's path, the function's name.
    let (mut strings, mut offsets) = (vec![0_u8], Vec::new());
    for string in [library.as_os_str().as_bytes(), FUNCTION.as_bytes()] {
        offsets.push(strings.len() as u64);
        strings.extend(string);
        strings.push(0);
    }
    let [path_name, function_name] = [0, 1].map(|index: usize| offsets.get(index).copied().unwrap_or_default());

    // What is only read: headers, symbols, their hash table, strings, the relocation.
    let symbols = EHDR + u64::from(SEGMENTS) * PHDR;
    let hash = symbols + 2 * SYM;
    let string_table = hash + 5 * 4;
    let relocations = (string_table + strings.len() as u64).next_multiple_of(8);
    let end = relocations + RELA;
    // What the loader writes to: the function's address, the dynamic section.
    let offset = end.next_multiple_of(16);
    let address = offset + PAGE;
    let (init_array, dynamic) = (address, address + 8);

    let entries = [
        (tag::NEEDED, path_name),
        (tag::HASH, hash),
        (tag::STRTAB, string_table),
        (tag::SYMTAB, symbols),
        (tag::STRSZ, strings.len() as u64),
        (tag::SYMENT, SYM),
        (tag::RELA, relocations),
        (tag::RELASZ, RELA),
        (tag::RELAENT, RELA),
        (tag::INIT_ARRAY, init_array),
        (tag::INIT_ARRAYSZ, 8),
        (tag::NULL, 0),
    ];
    let dynamic_size = entries.len() as u64 * DYN;

    let mut file = Bytes::default();
    // 64 bits, little-endian, version 1, System V.
    file.0.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    file.half(SHARED_OBJECT).half(machine::MACHINE).word(1).long(0).long(EHDR).long(0).word(0);
    // Sizes of this header and of a program header, and no sections.
    file.half(64).half(56).half(SEGMENTS).half(64).half(0).half(0);
    file.segment(LOAD, READ, 0, 0, end, PAGE);
    file.segment(LOAD, READ_WRITE, offset, address, 8 + dynamic_size, PAGE);
    file.segment(DYNAMIC, READ_WRITE, offset + 8, dynamic, dynamic_size, 8);
    file.segment(GNU_STACK, READ_WRITE, 0, 0, 0, 16);
    // The null symbol, and the function: global, of no type, undefined.
    file.word(0).word(0).long(0).long(0);
    #[expect(clippy::cast_possible_truncation, reason = "an offset in two short strings")]
    file.word(function_name as u32).half(0x10).half(0).long(0).long(0);
    // One bucket, two symbols: an empty chain, since nothing is defined here.
    for number in [1, 2, 0, 0, 0] {
        file.word(number);
    }
    file.0.extend(&strings);
    file.align(8);
    file.long(init_array).long(1 << 32 | machine::ADDRESS).long(0);
    file.align(16);
    file.long(0);
    for (tag, value) in entries {
        file.long(tag).long(value);
    }
    debug_assert_eq!(file.len(), offset + 8 + dynamic_size, "the file ends with the dynamic section");
    file.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dlopen(path: &Path) -> Result<*mut libc::c_void, String> {
        let name = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: a C string; the libraries are the tests' own.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: after a failure it is a C string, valid until the next call.
            return Err(unsafe { std::ffi::CStr::from_ptr(libc::dlerror()) }.to_string_lossy().into_owned());
        }
        Ok(handle)
    }

    #[test]
    fn each_load_calls_the_function_of_the_library() {
        let dir = tempfile::tempdir().unwrap();
        let (source, library, stub) = (dir.path().join("l.c"), dir.path().join("l.so"), dir.path().join("stub.so"));
        std::fs::write(&source, format!("int calls; void {FUNCTION}(void) {{ calls++; }}")).unwrap();
        let mut compiler = std::process::Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-o"]).args([&library, &source]);
        assert!(compiler.status().unwrap().success());
        std::fs::write(&stub, elf(&library)).unwrap();

        let loaded = dlopen(&library).unwrap();
        // SAFETY: a live handle, and a name.
        let calls = unsafe { libc::dlsym(loaded, c"calls".as_ptr()) }.cast::<i32>();
        for expected in 1..4 {
            let handle = dlopen(&stub).unwrap();
            // SAFETY: the library's variable; it stays loaded.
            assert_eq!(unsafe { *calls }, expected);
            // SAFETY: opened above.
            assert_eq!(unsafe { libc::dlclose(handle) }, 0);
        }
    }

    #[test]
    fn without_the_library_it_cannot_be_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let stub = dir.path().join("stub.so");
        std::fs::write(&stub, elf(&dir.path().join("gone.so"))).unwrap();
        assert!(dlopen(&stub).unwrap_err().contains("gone.so"));
    }
}
