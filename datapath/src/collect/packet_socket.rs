//! Frames by a packet socket (`AF_PACKET`) with a ring of blocks (`TPACKET_V3`, packet(7) and
//! Documentation/networking/packet_mmap.rst). In: an interface. Out: what it receives and the filter takes, in place.
//!
//! The kernel fills a block, or gives it after [`RETIRE_MS`]; it is read, and given back. What finds no free block is
//! dropped and counted by the kernel.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};

use super::filter;
use super::quiet::Quiet;
use super::source::{Losses, Received, Source, no_interface};
use super::wanted::Wanted;
use crate::error::{Context, Error, ErrorKind};

/// Bytes of a block, and blocks: 32 MiB.
const BLOCK: usize = 1 << 20;
const BLOCKS: usize = 32;
/// After how many milliseconds a block is given that is not full.
const RETIRE_MS: u32 = 10;
/// The kernel leaves this many bytes before each frame, for the VLAN tag that it took off.
const RESERVED: u32 = 4;
/// Bytes of both MAC addresses: the tag belongs behind them.
const MACS: usize = 12;

/// See the module.
pub struct PacketSocket {
    interface: String,
    fd: OwnedFd,
    ring: Ring,
    /// The block that is read next.
    at: usize,
    dropped: u64,
    /// Larger ones were put together by the kernel.
    longest: usize,
    merged: u64,
    _quiet: Quiet,
}

impl PacketSocket {
    /// Listens to an interface.
    ///
    /// # Errors
    /// `Invalid`: there is no such interface. `PermissionDenied`: without `CAP_NET_RAW`.
    pub fn open(interface: &str, wanted: &Wanted) -> Result<Self, Error> {
        let about = || format!("listening to interface {interface}");
        let links = crate::netdev::Netdev::open()?.links()?;
        let link = links.get(interface).ok_or_else(|| no_interface(interface))?;
        // Protocol 0: nothing comes before the filter is there.
        let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(0))).map_err(|error| {
            if error.kind() == std::io::ErrorKind::PermissionDenied {
                return Error::caused(
                    ErrorKind::PermissionDenied,
                    format!("{}: it needs CAP_NET_RAW", about()),
                    error,
                );
            }
            Error::caused(ErrorKind::Kernel, about(), error)
        })?;
        let program = filter::program(wanted);
        let program: Vec<SockFilter> = program
            .iter()
            .map(|one| SockFilter::new(one.code, one.on_true, one.on_false, one.operand))
            .collect();
        socket.attach_filter(&program).context(about)?;
        let fd = OwnedFd::from(socket);
        // Kernels before 4.20 do not know it; what left the interface is told apart below as well.
        let _ = set(&fd, libc::PACKET_IGNORE_OUTGOING, &1);
        set(&fd, libc::PACKET_VERSION, &(libc::tpacket_versions::TPACKET_V3 as libc::c_int))
            .context(about)?;
        set(&fd, libc::PACKET_RESERVE, &RESERVED).context(about)?;
        let ring = Ring::map(&fd).context(about)?;
        bind(&fd, link.index).context(about)?;
        Ok(Self {
            interface: interface.to_owned(),
            fd,
            ring,
            at: 0,
            dropped: 0,
            longest: link.mtu as usize + 14 + 2 * 4,
            merged: 0,
            _quiet: Quiet::listen(wanted),
        })
    }

    fn wait(&self, wait: Duration) -> Result<(), Error> {
        let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN | PollFlags::POLLERR)];
        let timeout = PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX);
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error).context(|| format!("waiting for {}", self.interface)),
        }
        if fds[0].revents().is_some_and(|events| events.contains(PollFlags::POLLERR)) {
            // An interface that went down comes back; one that is gone does not.
            let error: io::Result<()> = error_of(&self.fd);
            if matches!(&error, Err(error) if error.raw_os_error() != Some(libc::ENETDOWN)) {
                return error.context(|| format!("receiving from {}", self.interface));
            }
            if nix::net::if_::if_nametoindex(self.interface.as_str()).is_err() {
                let about = format!("interface {} is gone", self.interface);
                return Err(Error::new(ErrorKind::Kernel, about));
            }
            std::thread::sleep(wait.min(Duration::from_millis(50)));
        }
        Ok(())
    }
}

impl Source for PacketSocket {
    fn receive(&mut self, wait: Duration, each: &mut dyn FnMut(&Received<'_>)) -> Result<usize, Error> {
        if !self.ring.is_ready(self.at) {
            self.wait(wait)?;
        }
        let mut count = 0;
        for _ in 0..BLOCKS {
            if !self.ring.is_ready(self.at) {
                break;
            }
            let (longest, mut merged) = (self.longest, 0);
            count += self.ring.read(self.at, &mut |received| {
                merged += u64::from(received.data.len() > longest);
                each(received);
            });
            self.merged += merged;
            self.ring.give_back(self.at);
            self.at = (self.at + 1) % BLOCKS;
        }
        Ok(count)
    }

    fn losses(&mut self) -> Losses {
        if let Ok(news) = statistics(&self.fd) {
            self.dropped += u64::from(news.tp_drops);
        }
        Losses(vec![("ring full", self.dropped), ("merged by GRO", self.merged)])
    }

    fn describe(&self) -> String {
        format!("AF_PACKET on {}", self.interface)
    }
}

/// The mapped blocks.
struct Ring(NonNull<u8>);

// SAFETY: the mapping belongs to this value alone and is reached through it only.
unsafe impl Send for Ring {}

impl Ring {
    fn map(fd: &OwnedFd) -> io::Result<Self> {
        let request = libc::tpacket_req3 {
            tp_block_size: BLOCK as libc::c_uint,
            tp_block_nr: BLOCKS as libc::c_uint,
            tp_frame_size: 2048,
            tp_frame_nr: (BLOCK / 2048 * BLOCKS) as libc::c_uint,
            tp_retire_blk_tov: RETIRE_MS,
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        };
        set(fd, libc::PACKET_RX_RING, &request)?;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a fresh mapping of the socket's ring, as long as the ring asked for above.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), BLOCK * BLOCKS, protection, flags, fd.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(at.cast()).map(Self).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    fn block(&self, number: usize) -> *mut u8 {
        // SAFETY: `number` is below BLOCKS, so the block lies in the mapping.
        unsafe { self.0.as_ptr().add(number % BLOCKS * BLOCK) }
    }

    fn status(&self, number: usize) -> &AtomicU32 {
        // linux/if_packet.h: struct tpacket_block_desc is version, offset_to_priv, block_status, …
        const STATUS: usize = 2 * size_of::<u32>();
        // SAFETY: the word lies at the block's start, is aligned (blocks are by page), and both sides use it as an
        // atomic.
        unsafe { AtomicU32::from_ptr(self.block(number).add(STATUS).cast()) }
    }

    fn is_ready(&self, number: usize) -> bool {
        self.status(number).load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    fn give_back(&mut self, number: usize) {
        self.status(number).store(libc::TP_STATUS_KERNEL, Ordering::Release);
    }

    /// Shows the frames of a block that is ready.
    fn read(&mut self, number: usize, each: &mut dyn FnMut(&Received<'_>)) -> usize {
        debug_assert!(self.is_ready(number));
        // SAFETY: the block is user space's until it is given back, which takes `&mut self` as this does.
        let block = unsafe { std::slice::from_raw_parts_mut(self.block(number), BLOCK) };
        let word = |block: &[u8], at: usize| {
            block.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_ne_bytes)
        };
        let (packets, first) = (word(block, 12), word(block, 16));
        let (mut at, mut shown) = (first as usize, 0);
        for _ in 0..packets {
            let next = word(block, at) as usize;
            let time = u64::from(word(block, at + 4)) * 1_000_000_000 + u64::from(word(block, at + 8));
            let (len, status, mac) =
                (word(block, at + 12) as usize, word(block, at + 20), word(block, at + 24));
            let tags = (word(block, at + 32), word(block, at + 36));
            // `struct sockaddr_ll` follows: its byte 10 is the packet's type.
            let kind = block.get(at + size_of::<libc::tpacket3_hdr>() + 10).copied();
            // tp_mac is the first of two 16-bit fields.
            let start = at + usize::from(u16::from_ne_bytes(first_half(mac)));
            if kind != Some(libc::PACKET_OUTGOING)
                && let Some(data) = with_tag(block, start, len, status, tags)
            {
                each(&Received { data, time });
                shown += 1;
            }
            if next == 0 {
                break;
            }
            at += next;
        }
        shown
    }
}

fn first_half(word: u32) -> [u8; 2] {
    let [a, b, ..] = word.to_ne_bytes();
    [a, b]
}

/// The frame, with the VLAN tag that the kernel took off put back into the bytes before it.
fn with_tag(block: &mut [u8], start: usize, len: usize, status: u32, tags: (u32, u32)) -> Option<&[u8]> {
    if status & libc::TP_STATUS_VLAN_VALID == 0 || len < MACS {
        return block.get(start..start + len);
    }
    let kind = match u16::from_ne_bytes(first_half(tags.1)) {
        kind if status & libc::TP_STATUS_VLAN_TPID_VALID != 0 => kind,
        _ => podwire_core::wire::ethernet::ETHER_TYPE_VLAN,
    };
    let begin = start.checked_sub(RESERVED as usize)?;
    let frame = block.get_mut(begin..start + len)?;
    frame.copy_within(4..4 + MACS, 0);
    let (kind, tag) = (kind.to_be_bytes(), (tags.0 as u16).to_be_bytes());
    frame.get_mut(MACS..MACS + 4)?.copy_from_slice(&[kind[0], kind[1], tag[0], tag[1]]);
    Some(frame)
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and nothing borrows from it any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), BLOCK * BLOCKS) };
    }
}

fn set<T>(fd: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value is as long as said and outlives the call.
    match unsafe {
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_PACKET, option, std::ptr::from_ref(value).cast(), len)
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn get<T>(fd: &OwnedFd, level: libc::c_int, option: libc::c_int, mut value: T) -> io::Result<T> {
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes of plain numbers to a value that outlives the call.
    match unsafe { libc::getsockopt(fd.as_raw_fd(), level, option, (&raw mut value).cast(), &raw mut len) } {
        0 => Ok(value),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reading takes the numbers to zero.
fn statistics(fd: &OwnedFd) -> io::Result<libc::tpacket_stats_v3> {
    let zero = libc::tpacket_stats_v3 { tp_packets: 0, tp_drops: 0, tp_freeze_q_cnt: 0 };
    get(fd, libc::SOL_PACKET, libc::PACKET_STATISTICS, zero)
}

fn error_of(fd: &OwnedFd) -> io::Result<()> {
    match get(fd, libc::SOL_SOCKET, libc::SO_ERROR, 0)? {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

fn bind(fd: &OwnedFd, ifindex: u32) -> io::Result<()> {
    // SAFETY: all zero is a value of this plain C structure.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = ifindex as i32;
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address is as long as said and outlives the call.
    match unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
