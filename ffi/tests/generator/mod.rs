//! Generated files, their headers and settings.
//!
//! Shared by `examples/regenerate.rs` (writes the files) and `tests/generated.rs` (compares them).

use std::path::{Path, PathBuf};
use std::process::Command;

/// One committed file and the headers it comes from.
pub(crate) struct Generated {
    /// File name under `src/`.
    pub(crate) file: &'static str,
    /// The C translation unit.
    source: &'static str,
    /// Origin of the version in the file's first lines.
    origin: Origin,
    /// Types and constants to keep (regular expressions); everything they need comes along.
    allow: &'static [&'static str],
    /// The library's functions instead of its types.
    functions: bool,
    /// Whether sizes and offsets are those of one architecture: `pthread_mutex_t` differs, and so does what holds one.
    one_architecture: bool,
    /// Preamble: the file's description, its imports, and lints that C's names do not meet.
    preamble: &'static [&'static str],
}

enum Origin {
    /// A pkg-config module.
    PkgConfig(&'static str),
    /// A kernel's exported headers: the version in <linux/version.h>, to the last number, as stable releases add attributes.
    KernelHeaders,
}

/// List of the files that are generated.
pub(crate) const ALL: &[Generated] = &[
    Generated {
        file: "verbs.rs",
        source: "#include <infiniband/verbs.h>\n",
        origin: Origin::PkgConfig("libibverbs"),
        allow: &["ibv_.*", "IBV_.*", "_ibv_.*", "verbs_context"],
        functions: false,
        one_architecture: true,
        preamble: &[
            "//! Types and constants of `<infiniband/verbs.h>`.",
            "#![expect(non_camel_case_types, non_snake_case, missing_docs, reason = \"generated: C's names\")]",
            "#![expect(clippy::use_self, reason = \"generated\")]",
            "use libc::{pthread_cond_t, pthread_mutex_t, timespec};",
        ],
    },
    Generated {
        file: "functions.rs",
        source: "#include <infiniband/verbs.h>\n",
        origin: Origin::PkgConfig("libibverbs"),
        allow: &["_?ibv_.*"],
        functions: true,
        one_architecture: false,
        preamble: &[
            "//! Functions of `<infiniband/verbs.h>`, for programs that link with libibverbs. A provider does not.",
            "#![expect(missing_docs, reason = \"generated\")]",
            "use super::verbs::*;",
        ],
    },
    Generated {
        file: "uapi.rs",
        source: "#include <rdma/ib_user_verbs.h>\n\
                 #include <rdma/ib_user_ioctl_verbs.h>\n\
                 #include <rdma/ib_user_ioctl_cmds.h>\n\
                 #include <rdma/rdma_user_ioctl_cmds.h>\n",
        origin: Origin::KernelHeaders,
        allow: &[
            "ib_uverbs_(cmd_hdr|ex_cmd_hdr|ioctl_hdr|attr|gid_entry|gid_type|access_flags)",
            "ib_uverbs_(async|comp)_event_desc",
            "ib_uverbs_create_comp_channel(_resp)?",
            "ib_uverbs_write_cmds",
            "ib_uverbs_core_support",
            "IB_USER_VERBS_.*",
            "uverbs_default_objects",
            "uverbs_(attrs|methods?)_.*(device|context|gid|port|async_event|invoke_write).*",
            "UVERBS_(OBJECT|METHOD|ATTR|ID)_.*",
            "RDMA_IOCTL_MAGIC",
        ],
        functions: false,
        one_architecture: false,
        preamble: &[
            "//! The kernel's uverbs ABI: write commands, ioctls, events.",
            "#![expect(non_camel_case_types, missing_docs, reason = \"generated: C's names\")]",
            "#![expect(clippy::use_self, clippy::missing_safety_doc, clippy::undocumented_unsafe_blocks, reason = \"generated\")]",
            "// `unsafe` is bindgen's, in the methods of flexible arrays: their callers know the length.",
        ],
    },
    Generated {
        file: "ucma.rs",
        source: "#include <rdma/rdma_user_cm.h>\n",
        origin: Origin::KernelHeaders,
        allow: &["rdma_ucm_.*", "RDMA_USER_CM_.*", "RDMA_UCM_.*"],
        functions: false,
        one_architecture: false,
        preamble: &[
            "//! The kernel's rdma_cm ABI.",
            "#![expect(non_camel_case_types, missing_docs, reason = \"generated: C's names\")]",
            "#![expect(clippy::use_self, clippy::missing_safety_doc, clippy::undocumented_unsafe_blocks, reason = \"generated\")]",
            "// `unsafe` is bindgen's, in the methods of flexible arrays: their callers know the length.",
            "use libc::sockaddr_in6;",
        ],
    },
    Generated {
        file: "nldev.rs",
        source: "#include <rdma/rdma_netlink.h>\n",
        origin: Origin::KernelHeaders,
        allow: &["rdma_nldev_command", "rdma_nldev_attr", "RDMA_NL_(NLDEV|GROUP_.*)", "RDMA_NODE_.*"],
        functions: false,
        one_architecture: false,
        preamble: &[
            "//! The kernel's netlink ABI of RDMA devices: commands and attributes.",
            "#![expect(non_camel_case_types, missing_docs, reason = \"generated: C's names\")]",
        ],
    },
];

/// How bindgen begins what it asserts about a type's layout.
const LAYOUT_TEST: &str = "#[allow(clippy::unnecessary_operation, clippy::identity_op)]\nconst _: () = {\n";

impl Generated {
    /// Path of the committed file.
    pub(crate) fn path(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(self.file)
    }

    /// The first line of the file: where its content comes from.
    pub(crate) fn origin_line(&self) -> String {
        match self.origin {
            Origin::PkgConfig(module) => {
                let output = Command::new("pkg-config").args(["--modversion", module]).output();
                let version = output.ok().filter(|o| o.status.success()).map_or_else(
                    || "(not installed)".to_owned(),
                    |o| String::from_utf8_lossy(&o.stdout).trim().to_owned(),
                );
                format!("// Generated by `cargo run -p urxe-ffi --example regenerate` from {module} {version}.")
            }
            Origin::KernelHeaders => {
                let header = std::fs::read_to_string("/usr/include/linux/version.h").unwrap_or_default();
                let field = |name: &str| {
                    header
                        .lines()
                        .find_map(|l| l.strip_prefix("#define ")?.strip_prefix(name)?.trim().parse::<u32>().ok())
                        .map_or_else(|| "?".to_owned(), |v| v.to_string())
                };
                let version =
                    ["MAJOR", "PATCHLEVEL", "SUBLEVEL"].map(|part| field(&format!("LINUX_VERSION_{part}"))).join(".");
                format!("// Generated by `cargo run -p urxe-ffi --example regenerate` from Linux {version}'s headers.")
            }
        }
    }

    /// Runs bindgen: the text the file should have.
    pub(crate) fn text(&self) -> Result<String, bindgen::BindgenError> {
        let mut builder = bindgen::Builder::default()
            .header_contents("urxe.h", self.source)
            // An application may put any number where the header says `enum`: integers, not Rust enums.
            .default_enum_style(bindgen::EnumVariation::Consts)
            .prepend_enum_name(false)
            .derive_debug(false)
            .derive_default(false)
            .layout_tests(true)
            .generate_comments(false)
            .sort_semantically(true)
            .merge_extern_blocks(true)
            .ctypes_prefix("::core::ffi")
            .use_core()
            .rust_target(rust_version())
            .rust_edition(bindgen::RustEdition::Edition2024)
            .wrap_unsafe_ops(true)
            .disable_header_comment()
            .formatter(bindgen::Formatter::Prettyplease)
            .raw_line(self.origin_line())
            // libc has them, with the size of the platform at hand.
            .blocklist_type("pthread_.*|__pthread_.*|timespec|__time_t|__syscall_slong_t|sockaddr.*|sa_family_t|in6?_addr.*|__socklen_t");
        for line in self.preamble {
            builder = builder.raw_line(*line);
        }
        if self.functions {
            builder = builder.with_codegen_config(bindgen::CodegenConfig::FUNCTIONS);
            for pattern in self.allow {
                builder = builder.allowlist_function(pattern);
            }
        } else {
            builder = builder.ignore_functions();
            for pattern in self.allow {
                builder = builder.allowlist_type(pattern).allowlist_var(pattern);
            }
        }
        let text = builder.generate()?.to_string();
        if !self.one_architecture {
            return Ok(text);
        }
        let condition = format!("#[cfg(target_arch = \"{}\")]\n", std::env::consts::ARCH);
        Ok(text.replace(LAYOUT_TEST, &(condition + LAYOUT_TEST)))
    }
}

/// The release from which edition 2024 is possible.
fn rust_version() -> bindgen::RustTarget {
    bindgen::RustTarget::stable(85, 0).unwrap_or_default()
}
