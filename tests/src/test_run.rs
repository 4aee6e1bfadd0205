//! A loaded BPF program, run on a frame of our own (`BPF_PROG_TEST_RUN`). In: a frame and the interface that it
//! counts as seen on. Out: the return code, the frame afterwards, the time it took.
#![allow(unsafe_code, reason = "libbpf's system calls take pointers")]

use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::{io, ptr};

use anyhow::{Context, Result, ensure};
use libbpf_sys::{
    BPF_PROG_TYPE_SCHED_CLS, bpf_insn, bpf_link_info, bpf_obj_get_info_by_fd, bpf_prog_info, bpf_prog_load,
    bpf_prog_test_run_opts, bpf_test_run_opts,
};

/// Shortest frame that the kernel runs a program on: an Ethernet header and one byte.
pub const MIN_FRAME: usize = 15;
/// Longest frame: it has to fit a page together with the kernel's own head and tail room.
pub const MAX_FRAME: usize = 3000;
/// Room for the frame afterwards.
const MAX_OUTPUT: usize = MAX_FRAME + 512;

/// Offsets in `struct __sk_buff` of `linux/bpf.h`, and how much of it is given: the rest counts as zero.
const MARK: usize = 8;
const IFINDEX: usize = 40;
const CONTEXT_LEN: usize = 44;

/// A loaded program.
#[derive(Debug)]
pub struct Program(OwnedFd);

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The return code.
    pub code: i32,
    /// The frame afterwards.
    pub frame: Vec<u8>,
    /// Time per repetition in ns, as the kernel says.
    pub nanoseconds: u32,
}

/// What the kernel says about a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Instructions that the verifier walked over, all paths together.
    pub verified: u32,
    /// Bytes of BPF instructions.
    pub translated: u32,
    /// Bytes of machine code.
    pub jited: u32,
}

/// The number that the kernel gave to a pinned link when it was made.
///
/// # Errors
/// When nothing, or something else, is pinned there.
pub fn link_number(path: &Path) -> Result<u32> {
    Ok(link_info(path)?.id)
}

fn link_info(path: &Path) -> Result<bpf_link_info> {
    let link = libbpf_rs::Link::open(path).with_context(|| format!("opening {}", path.display()))?;
    let mut info = bpf_link_info::default();
    let mut len = size_of::<bpf_link_info>() as u32;
    let descriptor = link.as_fd().as_raw_fd();
    // SAFETY: the structure is as large as said.
    let result = unsafe { bpf_obj_get_info_by_fd(descriptor, (&raw mut info).cast(), &raw mut len) };
    ensure!(result == 0, "asking about a link: {}", io::Error::from_raw_os_error(-result));
    Ok(info)
}

impl Program {
    /// The program behind a pinned link.
    ///
    /// # Errors
    /// When nothing, or something else, is pinned there.
    pub fn behind_link(path: &Path) -> Result<Self> {
        Ok(Self(libbpf_rs::Program::fd_from_id(link_info(path)?.prog_id)?))
    }

    /// The programs that the kernel has loaded: number and name, which is cut at 15 bytes.
    pub fn all() -> Vec<(u32, String)> {
        libbpf_rs::query::ProgInfoIter::default()
            .map(|info| (info.id, info.name.to_string_lossy().into_owned()))
            .collect()
    }

    /// The program of this number.
    ///
    /// # Errors
    /// When it is gone.
    pub fn of_number(number: u32) -> Result<Self> {
        Ok(Self(libbpf_rs::Program::fd_from_id(number)?))
    }

    /// A program that returns 0 and does nothing else: what a run costs by itself.
    ///
    /// # Errors
    /// Without the right to load programs.
    pub fn empty() -> Result<Self> {
        let instruction = |code, imm| bpf_insn { code, imm, ..bpf_insn::default() };
        // r0 = 0; exit
        let instructions = [instruction(0xb7, 0), instruction(0x95, 0)];
        // SAFETY: the strings end with NUL, the instructions are as many as said, options may be null.
        let fd = unsafe {
            bpf_prog_load(
                BPF_PROG_TYPE_SCHED_CLS,
                c"empty".as_ptr(),
                c"GPL".as_ptr(),
                instructions.as_ptr(),
                instructions.len() as _,
                ptr::null_mut(),
            )
        };
        ensure!(fd >= 0, "loading the empty program: {}", io::Error::last_os_error());
        // SAFETY: the kernel has just given us this descriptor, and nobody else.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Runs the program `repeat` times on a frame that counts as seen on an interface, with a mark.
    ///
    /// # Errors
    /// When the kernel refuses the frame.
    pub fn run(&self, frame: &[u8], ifindex: u32, mark: u32, repeat: u32) -> Result<Outcome> {
        let mut context = [0u8; CONTEXT_LEN];
        context[MARK..MARK + 4].copy_from_slice(&mark.to_ne_bytes());
        context[IFINDEX..IFINDEX + 4].copy_from_slice(&ifindex.to_ne_bytes());
        let mut output = vec![0u8; MAX_OUTPUT];
        let mut options = bpf_test_run_opts {
            sz: size_of::<bpf_test_run_opts>() as _,
            data_in: frame.as_ptr().cast::<c_void>(),
            data_size_in: frame.len() as u32,
            data_out: output.as_mut_ptr().cast::<c_void>(),
            data_size_out: output.len() as u32,
            ctx_in: context.as_ptr().cast::<c_void>(),
            ctx_size_in: context.len() as u32,
            repeat: repeat as i32,
            ..bpf_test_run_opts::default()
        };
        // SAFETY: every pointer is to as many bytes as said beside it, and outlives the call.
        let result = unsafe { bpf_prog_test_run_opts(self.0.as_raw_fd(), &raw mut options) };
        ensure!(result == 0, "running on {} bytes: {}", frame.len(), io::Error::from_raw_os_error(-result));
        output.truncate(options.data_size_out as usize);
        Ok(Outcome { code: options.retval as i32, frame: output, nanoseconds: options.duration })
    }

    /// What the kernel says about it.
    ///
    /// # Errors
    /// When the kernel says nothing.
    pub fn size(&self) -> Result<Size> {
        let mut info = bpf_prog_info::default();
        let mut len = size_of::<bpf_prog_info>() as u32;
        // SAFETY: the structure is as large as said.
        let result =
            unsafe { bpf_obj_get_info_by_fd(self.0.as_raw_fd(), (&raw mut info).cast(), &raw mut len) };
        ensure!(result == 0, "asking about a program: {}", io::Error::from_raw_os_error(-result));
        Ok(Size {
            verified: info.verified_insns,
            translated: info.xlated_prog_len,
            jited: info.jited_prog_len,
        })
    }
}
