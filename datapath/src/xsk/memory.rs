//! The memory that packets are in, in buffers of one size. In: descriptors. Out: bytes.
//!
//! xsk-rs hands out bytes for any descriptor, and descriptors can be copied. Here a descriptor is inside a
//! [`Frame`], of which there is one for each buffer.

use std::num::NonZeroU32;

use xsk_rs::config::{FrameSize, QueueSize, UmemConfig};
use xsk_rs::{FrameDesc, Umem};

use crate::error::{Context, Error, ErrorKind};

/// Bytes in front of a packet that belong to the XDP program (`XDP_PACKET_HEADROOM`).
pub(super) const HEADROOM: u32 = 256;

/// A buffer in the caller's hands, with a packet or a piece of one. It goes back by [`super::Pool::free`] or by
/// [`super::Port::send`].
#[derive(Debug)]
#[must_use = "a buffer that is dropped is lost to its pool"]
pub struct Frame {
    pub(super) descriptor: FrameDesc,
    /// The pool that it is of.
    pub(super) pool: u32,
}

impl Frame {
    /// Bytes of the packet in it.
    pub fn len(&self) -> usize {
        self.descriptor.lengths().data()
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the packet goes on in the next one.
    pub fn has_more(&self) -> bool {
        self.descriptor.has_more_frames()
    }
}

/// The memory.
pub(super) struct Memory {
    umem: Umem,
    /// Bytes of a buffer, as a power of two.
    shift: u32,
    count: usize,
    /// Each buffer's descriptor when it is empty.
    empty: Vec<FrameDesc>,
}

impl Memory {
    /// Takes memory for so many buffers of `size` bytes.
    pub(super) fn take(buffers: u32, size: u32) -> Result<Self, Error> {
        let count = NonZeroU32::new(buffers)
            .filter(|count| count.is_power_of_two())
            .ok_or_else(|| Error::new(ErrorKind::Invalid, format!("{buffers} buffers: no power of two")))?;
        // Every buffer fits in either ring: a full ring is then no case.
        let rings = QueueSize::new(buffers).context(|| format!("rings of {buffers} buffers"))?;
        let config = UmemConfig::builder()
            .frame_size(FrameSize::new(size).context(|| format!("buffers of {size} bytes"))?)
            .fill_queue_size(rings)
            .comp_queue_size(rings)
            .build()
            .context(|| format!("buffers of {size} bytes"))?;
        let (umem, frames) =
            Umem::new(config, count, false).map_err(|error| refused(error, buffers, size))?;
        Ok(Self { umem, shift: size.trailing_zeros(), count: buffers as usize, empty: frames })
    }

    /// Each buffer's descriptor when it is empty.
    pub(super) fn empty(&self) -> &[FrameDesc] {
        &self.empty
    }

    pub(super) fn umem(&self) -> &Umem {
        &self.umem
    }

    /// Bytes of a packet that one buffer holds.
    pub(super) fn room(&self) -> u32 {
        (1 << self.shift) - HEADROOM
    }

    /// The buffer that a descriptor of the kernel is in; `None` when its bytes are not inside one of ours.
    pub(super) fn buffer_of(&self, descriptor: &FrameDesc) -> Option<usize> {
        let (address, len) = (descriptor.addr(), descriptor.lengths().data());
        // Asked several times for each packet: no division.
        let (buffer, size) = (address >> self.shift, 1 << self.shift);
        (buffer < self.count && (address & (size - 1)) + len <= size).then_some(buffer)
    }

    /// The same as a number that no buffer has.
    pub(super) fn index_of(&self, descriptor: &FrameDesc) -> usize {
        self.buffer_of(descriptor).unwrap_or(usize::MAX)
    }

    /// The bytes in a frame.
    pub(super) fn bytes<'a>(&'a self, frame: &'a Frame) -> &'a [u8] {
        // SAFETY: the frame is of this memory, as its pool made sure; `buffer_of` was asked when it came from the
        // kernel; it is the only handle of its buffer, and borrowed for as long as the bytes.
        unsafe { self.umem.data(&frame.descriptor).contents() }
    }

    /// The bytes in a frame, to change.
    pub(super) fn bytes_mut<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        let len = frame.len();
        // SAFETY: as above; the frame is borrowed exclusively.
        let data = unsafe { self.umem.data_mut(&mut frame.descriptor) };
        let all: &'a mut [u8] = slice_of(data, len);
        all
    }

    /// Puts a packet into a frame; `false` when it does not fit.
    #[must_use]
    pub(super) fn write(&self, frame: &mut Frame, packet: &[u8]) -> bool {
        use std::io::Write;
        // SAFETY: as above.
        let mut data = unsafe { self.umem.data_mut(&mut frame.descriptor) };
        let mut cursor = data.cursor();
        cursor.set_pos(0);
        cursor.write_all(packet).is_ok()
    }
}

/// The first `len` bytes; xsk-rs lends them for as long as the frame is borrowed.
fn slice_of<'a>(mut data: xsk_rs::umem::frame::DataMut<'a>, len: usize) -> &'a mut [u8] {
    let bytes: *mut u8 = data.contents_mut().as_mut_ptr();
    // SAFETY: the pointer and the length are of the slice above, which lies in memory that is borrowed for 'a.
    unsafe { std::slice::from_raw_parts_mut(bytes, len) }
}

fn refused(error: xsk_rs::umem::UmemCreateError, buffers: u32, size: u32) -> Error {
    let bytes = u64::from(buffers) * u64::from(size);
    let cause = std::error::Error::source(&error).and_then(|cause| cause.downcast_ref::<std::io::Error>());
    match cause.and_then(std::io::Error::raw_os_error) {
        Some(libc::ENOBUFS) => Error::caused(
            ErrorKind::PermissionDenied,
            format!(
                "{bytes} bytes for packets are more than may be locked: raise RLIMIT_MEMLOCK, or have CAP_IPC_LOCK"
            ),
            error,
        ),
        Some(libc::EAFNOSUPPORT) => {
            Error::new(ErrorKind::Unsupported, "this kernel has no AF_XDP (CONFIG_XDP_SOCKETS)")
        }
        Some(libc::EPERM) => {
            Error::caused(ErrorKind::PermissionDenied, "AF_XDP sockets need CAP_NET_RAW", error)
        }
        _ => Error::caused(ErrorKind::Kernel, format!("taking {bytes} bytes for packets"), error),
    }
}
