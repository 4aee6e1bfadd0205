//! Packets in a pod's name. In: a frame and the pod's interface. Out: the frame at the pod's hook, as if the pod had sent
//! it: the private mirror device's program takes it there.

use std::sync::{Arc, Mutex, PoisonError};

use podwire_core::abi::INJECTED;

use crate::error::{Context, Error};
use crate::sys::FrameSocket;

/// How an endpoint is attached to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Host side of its interface.
    pub ifindex: u32,
    /// Its own MAC address; that of the host side where it is not known.
    pub mac: [u8; 6],
    /// The MAC address of its gateway on this node: the bridge that the interface is a port of, else the host side.
    pub gateway: [u8; 6],
    /// That bridge.
    pub bridge: Option<u32>,
}

/// Sends packets as if a pod had. Works on any thread.
#[derive(Clone, Debug)]
pub struct Injector(Arc<Mutex<FrameSocket>>);

impl Injector {
    pub(crate) fn open(device: u32) -> Result<Self, Error> {
        let opening = || "opening a packet socket".to_owned();
        let socket = FrameSocket::open(device).context(opening)?;
        socket.set_mark(INJECTED).context(opening)?;
        Ok(Self(Arc::new(Mutex::new(socket))))
    }

    /// Sends a frame as if the pod behind an interface had. Counters have it as the pod's.
    ///
    /// # Errors
    /// `Kernel`.
    pub fn inject(&self, frame: &[u8], ifindex: u32) -> Result<(), Error> {
        // Where it goes is said to the socket: one frame at a time.
        let socket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        socket.set_priority(ifindex).and_then(|()| socket.send(frame)).context(|| "injecting a packet".into())
    }
}
