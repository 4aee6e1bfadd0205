//! One queue of one interface. In: frames to fill and to send. Out: frames that arrived and that were sent.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use xsk_rs::config::{BindFlags, Interface, LibxdpFlags, QueueSize, SocketConfig};
use xsk_rs::socket::SocketCreateError;
use xsk_rs::{CompQueue, FillQueue, FrameDesc, RxQueue, Socket, TxQueue};

use super::ledger::Place;
use super::memory::Frame;
use super::options::{Binding, Copying};
use super::pool::Pool;
use crate::error::{Context, Error, ErrorKind};
use crate::sys;

/// Frames that are moved at once.
pub(super) const BATCH: usize = 64;

/// How long an earlier owner's queue may take to become free.
const FREEING: Duration = Duration::from_secs(1);

/// What the kernel lost of a queue, as `XDP_STATISTICS` counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueLosses {
    /// Packets that did not fit a buffer, or found none.
    pub dropped: u64,
    /// Packets that found the queue of arrived packets full.
    pub ring_full: u64,
    /// Times the kernel found no buffer to receive into.
    pub fill_empty: u64,
    /// Descriptors that the kernel refused.
    pub invalid: u64,
}

/// One queue of one interface, with an AF_XDP socket on it.
pub struct Port {
    fill: FillQueue,
    rx: RxQueue,
    tx: TxQueue,
    completion: CompQueue,
    binding: Binding,
    /// The pool that it is of; with another one it does nothing.
    pool: u32,
    /// Frames that the device refused: they are not sent, and come back as if they were.
    refused: u64,
    /// Entries of the queue of frames to be sent.
    size: u32,
    /// In the kernel's hands, to be sent.
    sending: usize,
    scratch: Vec<FrameDesc>,
}

impl Port {
    /// Opens a queue, as [`Self::open`], that an earlier owner may have left just now: the kernel frees a dead process's
    /// queue a little later than its process.
    ///
    /// # Errors
    /// As of [`Self::open`].
    pub fn succeed(
        pool: &Pool,
        interface: &str,
        queue: u32,
        copying: Copying,
        frame: u32,
    ) -> Result<Self, Error> {
        let since = Instant::now();
        loop {
            match Self::open(pool, interface, queue, copying, frame) {
                Err(error) if error.kind() == ErrorKind::Busy && since.elapsed() < FREEING => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                opened => return opened,
            }
        }
    }

    /// Opens a queue. `frame` is the longest frame that can come, in bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] when the queue has such a socket, [`ErrorKind::Unsupported`] when the driver cannot do what is
    /// asked for, [`ErrorKind::PermissionDenied`] without CAP_NET_RAW.
    pub fn open(
        pool: &Pool,
        interface: &str,
        queue: u32,
        copying: Copying,
        frame: u32,
    ) -> Result<Self, Error> {
        let several = frame > pool.room();
        let size =
            QueueSize::new(pool.ledger().total().max(2)).context(|| "rings as long as the pool".into())?;
        let mut flags = BindFlags::XDP_USE_NEED_WAKEUP;
        flags.set(BindFlags::XDP_COPY, copying == Copying::Copy);
        flags.set(BindFlags::XDP_ZEROCOPY, copying == Copying::Zero);
        flags.set(BindFlags::XDP_USE_SG, several);
        let config = SocketConfig::builder()
            .rx_queue_size(size)
            .tx_queue_size(size)
            .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
            .bind_flags(flags)
            .build();
        let name = CString::new(interface).context(|| format!("interface {interface:?}"))?;
        let name = Interface::new(name);
        let asked = Asked { interface, queue, copying, several, frame, room: pool.room() };
        // SAFETY: no program is loaded by this socket, which is what the function asks of shared memory.
        let opened = unsafe { Socket::new(config, pool.memory().umem(), &name, queue) };
        let (tx, rx, rings) = opened.map_err(|error| asked.refused(error))?;
        let (fill, completion) = rings.ok_or_else(|| {
            Error::new(ErrorKind::Busy, format!("queue {queue} of {interface} is open in this pool already"))
        })?;
        let zero_copy = sys::is_zero_copy(rx.fd().as_raw_fd());
        let binding = Binding { zero_copy, several_buffers: several, room: pool.room() };
        Ok(Self {
            fill,
            rx,
            tx,
            completion,
            binding,
            pool: pool.number(),
            refused: 0,
            size: size.get(),
            sending: 0,
            scratch: vec![FrameDesc::default(); BATCH],
        })
    }

    /// What came of opening it.
    pub fn binding(&self) -> Binding {
        self.binding
    }

    /// Gives free buffers to the kernel to receive into, at most `most`; returns how many. They keep their order: the
    /// kernel goes through memory from one to the next, which processors foresee.
    pub fn fill(&mut self, pool: &mut Pool, most: usize) -> usize {
        let mut given = 0;
        while given < most && pool.number() == self.pool {
            let open = &pool.free_frames()[given..];
            let batch = open.len().min(BATCH).min(most - given);
            if batch == 0 {
                break;
            }
            for (to, frame) in self.scratch.iter_mut().zip(open) {
                *to = frame.descriptor;
            }
            // SAFETY: the descriptors are of free buffers of this pool, whose handles are given up below.
            let taken = unsafe { self.fill.produce(&self.scratch[..batch]) };
            if taken == 0 {
                break;
            }
            // The kernel takes all or none.
            pool.shift_all(&self.scratch[..batch], Place::Free, Place::Fill, |_| ());
            given += taken;
        }
        pool.free_frames().drain(..given);
        if given > 0 && self.fill.needs_wakeup() {
            let _ = self.rx.poll(0);
        }
        given
    }

    /// Takes what arrived, at most about [`BATCH`] frames: a packet is never torn. Returns how many frames.
    pub fn receive(&mut self, pool: &mut Pool, frames: &mut Vec<Frame>) -> usize {
        let before = frames.len();
        if pool.number() != self.pool {
            return 0;
        }
        // SAFETY: the descriptors are written by the kernel; what is not ours is refused by the ledger.
        let count = unsafe { self.rx.consume(&mut self.scratch) };
        pool.shift_all(&self.scratch[..count], Place::Fill, Place::User, |frame| frames.push(frame));
        while frames.last().is_some_and(Frame::has_more) && frames.len() > before {
            let mut next = FrameDesc::default();
            // SAFETY: as above.
            if unsafe { self.rx.consume_one(&mut next) } == 0 {
                break;
            }
            pool.shift_all(&[next], Place::Fill, Place::User, |frame| frames.push(frame));
        }
        frames.len() - before
    }

    /// Waits until something arrived, or for so many milliseconds.
    ///
    /// # Errors
    /// When the interface is gone.
    pub fn wait(&mut self, milliseconds: i32) -> io::Result<bool> {
        self.rx.poll(milliseconds)
    }

    /// Gives frames to the kernel to send; those that find no room stay in `frames`. [`Self::flush`] sends.
    pub fn send(&mut self, pool: &mut Pool, frames: &mut Vec<Frame>) -> usize {
        let mut given = 0;
        if pool.number() != self.pool || !frames.iter().all(|frame| pool.owns(frame)) {
            return 0;
        }
        while given < frames.len() {
            let batch = (frames.len() - given).min(BATCH);
            for (to, frame) in self.scratch.iter_mut().zip(&frames[given..]) {
                *to = frame.descriptor;
            }
            // SAFETY: the descriptors are of frames in our hands, whose handles are given up below.
            let taken = unsafe { self.tx.produce(&self.scratch[..batch]) };
            if taken == 0 {
                break;
            }
            for frame in &frames[given..given + taken] {
                let _ = pool.shift(frame, Place::User, Place::Tx);
            }
            given += taken;
        }
        frames.drain(..given);
        self.sending += given;
        given
    }

    /// Has the kernel send what it was given. `false` when it could not yet: the caller comes again.
    ///
    /// # Errors
    /// When the interface is down or gone; what was given stays given.
    pub fn flush(&mut self) -> io::Result<bool> {
        if self.sending == 0 {
            return Ok(true);
        }
        if !self.tx.needs_wakeup() {
            return Ok(true);
        }
        match sys::kick(self.tx.fd().as_raw_fd()) {
            Ok(()) => Ok(true),
            Err(error) => match error.raw_os_error() {
                // A batch was sent and there is more, or the device's queue is full.
                Some(libc::EAGAIN | libc::ENOBUFS) => Ok(false),
                // The device refused one, which is gone (`xsk_generic_xmit`); there may be more.
                Some(libc::EBUSY) => {
                    self.refused += u64::from(!self.binding.zero_copy);
                    Ok(false)
                }
                _ => Err(error),
            },
        }
    }

    /// Takes back what was sent; returns how many frames.
    pub fn reap(&mut self, pool: &mut Pool) -> usize {
        let mut all = 0;
        if pool.number() != self.pool {
            return 0;
        }
        loop {
            // SAFETY: as of `receive`.
            let count = unsafe { self.completion.consume(&mut self.scratch) };
            pool.take_sent(&self.scratch[..count]);
            self.sending = self.sending.saturating_sub(count);
            all += count;
            if count < BATCH {
                return all;
            }
        }
    }

    /// Frames that the kernel was given and has not looked at: the last ones of those that were sent.
    pub fn unsent(&mut self) -> usize {
        self.size.saturating_sub(self.tx.nb_free_exact()) as usize
    }

    /// Frames in the kernel's hands: not sent, or sent and not yet given back.
    pub fn sending(&self) -> usize {
        self.sending
    }

    /// Frames that the device refused since the last call: they are lost.
    pub fn take_refused(&mut self) -> u64 {
        std::mem::take(&mut self.refused)
    }

    /// Whether the interface is gone.
    pub(super) fn is_gone(&self) -> bool {
        // The kernel says so once, when it takes the socket off the interface.
        let error = nix::sys::socket::getsockopt(self, nix::sys::socket::sockopt::SocketError);
        matches!(error, Ok(number) if number != 0)
    }

    /// What the kernel lost.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn losses(&self) -> io::Result<QueueLosses> {
        let seen = self.rx.fd().xdp_statistics()?;
        Ok(QueueLosses {
            dropped: seen.rx_dropped(),
            ring_full: seen.rx_ring_full(),
            fill_empty: seen.rx_fill_ring_empty_descs(),
            invalid: seen.rx_invalid_descs() + seen.tx_invalid_descs(),
        })
    }
}

impl AsRawFd for Port {
    fn as_raw_fd(&self) -> RawFd {
        self.rx.fd().as_raw_fd()
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the socket is open for as long as the port.
        unsafe { BorrowedFd::borrow_raw(self.as_raw_fd()) }
    }
}

/// What was asked of the kernel, for the error that says why not.
struct Asked<'a> {
    interface: &'a str,
    queue: u32,
    copying: Copying,
    several: bool,
    frame: u32,
    room: u32,
}

impl Asked<'_> {
    fn refused(&self, error: SocketCreateError) -> Error {
        let Self { interface, queue, copying, several, frame, room } = *self;
        let (kind, what) = match number(&error) {
            Some(libc::EBUSY) => (
                ErrorKind::Busy,
                format!("queue {queue} of {interface} has an AF_XDP socket of another program"),
            ),
            Some(libc::EPERM | libc::EACCES) => {
                (ErrorKind::PermissionDenied, "AF_XDP sockets need CAP_NET_RAW".to_owned())
            }
            Some(libc::ENODEV) => (ErrorKind::Invalid, format!("there is no interface {interface}")),
            Some(libc::EINVAL) if several => (
                ErrorKind::Unsupported,
                format!(
                    "frames of {frame} bytes take several buffers, which this kernel cannot (Linux 6.6 on): lower the \
                     MTU of {interface} to {}",
                    room - 22
                ),
            ),
            Some(libc::EOPNOTSUPP | libc::EINVAL) if copying == Copying::Zero => (
                ErrorKind::Unsupported,
                format!("the driver of {interface} has no zero-copy AF_XDP: ask for copies"),
            ),
            Some(libc::EINVAL) => (ErrorKind::Invalid, format!("interface {interface} has no queue {queue}")),
            Some(libc::ENOBUFS) => (
                ErrorKind::PermissionDenied,
                "the rings are more memory than may be locked: raise RLIMIT_MEMLOCK".to_owned(),
            ),
            _ => (ErrorKind::Kernel, format!("opening queue {queue} of {interface}")),
        };
        Error::caused(kind, what, error)
    }
}

fn number(error: &SocketCreateError) -> Option<i32> {
    std::error::Error::source(error)
        .and_then(|cause| cause.downcast_ref::<io::Error>())
        .and_then(io::Error::raw_os_error)
}
