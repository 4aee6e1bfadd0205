//! System calls that no crate wraps. In: hand-assembled programs, a frame. Out: programs at hooks, frames on the
//! way.
#![allow(unsafe_code, reason = "libbpf's system calls take pointers")]

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use anyhow::{Result, ensure};
use libbpf_sys::{
    BPF_F_TEST_XDP_LIVE_FRAMES, BPF_PROG_TYPE_SCHED_CLS, BPF_PROG_TYPE_XDP, BPF_TCX_INGRESS, BPF_XDP,
    bpf_attach_type, bpf_insn, bpf_link_create, bpf_prog_load, bpf_prog_test_run_opts, bpf_prog_type,
    bpf_test_run_opts,
};

/// Go on with the next program, then with the stack (`linux/bpf.h`).
const TCX_NEXT: i32 = -1;
const TCX_DROP: i32 = 2;
const XDP_DROP: i32 = 1;
/// Numbers of helpers (`linux/bpf.h`).
const CLONE_REDIRECT: i32 = 13;
const REDIRECT: i32 = 23;
/// Opcodes.
const MOVE: u8 = 0xb7;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// A loaded program.
#[derive(Debug)]
pub struct Program {
    descriptor: OwnedFd,
    hook: bpf_attach_type,
}

/// A program at a hook; leaves it on drop.
#[derive(Debug)]
pub struct Attached(#[expect(dead_code, reason = "held for its drop")] OwnedFd);

fn set(register: u8, value: i32) -> bpf_insn {
    let mut instruction = bpf_insn { code: MOVE, imm: value, ..bpf_insn::default() };
    instruction.set_dst_reg(register);
    instruction
}

fn plain(code: u8, value: i32) -> bpf_insn {
    bpf_insn { code, imm: value, ..bpf_insn::default() }
}

impl Program {
    /// At a TC hook: does nothing.
    pub fn empty() -> Result<Self> {
        Self::load(BPF_PROG_TYPE_SCHED_CLS, &[set(0, TCX_NEXT), plain(EXIT, 0)])
    }

    /// At a TC hook: drops everything.
    pub fn drop_all() -> Result<Self> {
        Self::load(BPF_PROG_TYPE_SCHED_CLS, &[set(0, TCX_DROP), plain(EXIT, 0)])
    }

    /// At a TC hook: `bpf_clone_redirect` of everything, and nothing else.
    pub fn clone_to(ifindex: u32) -> Result<Self> {
        let ifindex = i32::try_from(ifindex)?;
        Self::load(
            BPF_PROG_TYPE_SCHED_CLS,
            &[set(2, ifindex), set(3, 0), plain(CALL, CLONE_REDIRECT), set(0, TCX_NEXT), plain(EXIT, 0)],
        )
    }

    /// XDP: everything to an interface.
    pub fn xdp_redirect(ifindex: u32) -> Result<Self> {
        let ifindex = i32::try_from(ifindex)?;
        Self::load(BPF_PROG_TYPE_XDP, &[set(1, ifindex), set(2, 0), plain(CALL, REDIRECT), plain(EXIT, 0)])
    }

    /// XDP: drops everything.
    ///
    /// # Errors
    /// Without root.
    pub fn xdp_drop() -> Result<Self> {
        Self::load(BPF_PROG_TYPE_XDP, &[set(0, XDP_DROP), plain(EXIT, 0)])
    }

    fn load(kind: bpf_prog_type, instructions: &[bpf_insn]) -> Result<Self> {
        // SAFETY: the strings end with NUL, the instructions are as many as said, options may be null.
        let fd = unsafe {
            bpf_prog_load(
                kind,
                c"side_by_side".as_ptr(),
                c"GPL".as_ptr(),
                instructions.as_ptr(),
                instructions.len() as _,
                ptr::null_mut(),
            )
        };
        ensure!(fd >= 0, "loading a program: {}", io::Error::last_os_error());
        // SAFETY: the kernel has just given us this descriptor, and nobody else.
        let descriptor = unsafe { OwnedFd::from_raw_fd(fd) };
        let hook = if kind == BPF_PROG_TYPE_XDP { BPF_XDP } else { BPF_TCX_INGRESS };
        Ok(Self { descriptor, hook })
    }

    /// Attaches it at an interface of the caller's namespace: one of the TC hook's programs at ingress, an XDP
    /// program as the driver's.
    pub fn attach(&self, ifindex: u32) -> Result<Attached> {
        // SAFETY: no options.
        let fd = unsafe {
            bpf_link_create(self.descriptor.as_raw_fd(), i32::try_from(ifindex)?, self.hook, ptr::null())
        };
        ensure!(fd >= 0, "attaching to interface {ifindex}: {}", io::Error::from_raw_os_error(-fd));
        // SAFETY: the kernel has just given us this descriptor, and nobody else.
        Ok(Attached(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Has an XDP program send `count` copies of a frame on their way (`BPF_F_TEST_XDP_LIVE_FRAMES`), as a network
    /// card's driver would. Returns when the last one has been sent.
    pub fn send(&self, frame: &[u8], count: u32) -> Result<()> {
        let mut options = bpf_test_run_opts {
            sz: size_of::<bpf_test_run_opts>() as _,
            data_in: frame.as_ptr().cast::<c_void>(),
            data_size_in: frame.len() as u32,
            repeat: i32::try_from(count)?,
            flags: BPF_F_TEST_XDP_LIVE_FRAMES,
            ..bpf_test_run_opts::default()
        };
        // SAFETY: every pointer is to as many bytes as said beside it, and outlives the call.
        let result = unsafe { bpf_prog_test_run_opts(self.descriptor.as_raw_fd(), &raw mut options) };
        ensure!(result == 0, "sending {count} frames: {}", io::Error::from_raw_os_error(-result));
        Ok(())
    }
}

/// Puts the calling thread before others, so that what else the machine does disturbs it less.
pub fn go_first() {
    // SAFETY: takes numbers only. Without the right to it, the run is noisier, and that is all.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
}
