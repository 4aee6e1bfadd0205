//! Frames as they are. In: bytes from the Ethernet header on. Out: the same on an interface, or what came in there.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, bind, recv, send, setsockopt,
    socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::netns::NetNs;

/// A packet socket (packet(7)) on one interface; stays there when its thread has left the namespace.
#[derive(Debug)]
pub struct RawSocket {
    socket: OwnedFd,
}

impl RawSocket {
    /// Opens one on an interface of a namespace; what comes in or goes out there from now on is kept for
    /// [`RawSocket::receive`].
    ///
    /// # Errors
    /// Without root, or when there is no such interface.
    pub fn open(netns: &NetNs, interface: &str) -> Result<Self> {
        let interface = interface.to_owned();
        netns.enter(move || {
            let address = link_address(&interface)?;
            let socket =
                socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll)
                    .context("opening a packet socket")?;
            bind(socket.as_raw_fd(), &address).with_context(|| format!("binding to {interface}"))?;
            // Until it was bound it heard every interface of the namespace.
            while recv(socket.as_raw_fd(), &mut [0; 1], MsgFlags::MSG_DONTWAIT).is_ok() {}
            setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::milliseconds(50))?;
            Ok(Self { socket })
        })
    }

    /// Sends one frame.
    ///
    /// # Errors
    /// When the interface is down or the frame exceeds its MTU.
    pub fn send(&self, frame: &[u8]) -> Result<()> {
        let sent = send(self.socket.as_raw_fd(), frame, MsgFlags::empty()).context("sending a frame")?;
        anyhow::ensure!(sent == frame.len(), "{sent} of {} bytes went out", frame.len());
        Ok(())
    }

    /// Waits for the first frame that `wanted` accepts; `None` when none came in time.
    ///
    /// # Errors
    /// When the interface goes down or away.
    pub fn receive(&self, wait: Duration, wanted: impl Fn(&[u8]) -> bool) -> Result<Option<Vec<u8>>> {
        let deadline = Instant::now() + wait;
        let mut buffer = vec![0; 65536];
        while Instant::now() < deadline {
            match recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(len) => {
                    let frame = buffer.get(..len).unwrap_or_default();
                    if wanted(frame) {
                        return Ok(Some(frame.to_vec()));
                    }
                }
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Err(error) => bail!("receiving a frame: {error}"),
            }
        }
        Ok(None)
    }
}

/// The kernel lists each interface with its `sockaddr_ll`, which spares building one by hand.
fn link_address(interface: &str) -> Result<LinkAddr> {
    getifaddrs()?
        .filter(|entry| entry.interface_name == interface)
        .find_map(|entry| entry.address.as_ref().and_then(|address| address.as_link_addr()).copied())
        .with_context(|| format!("no interface {interface}"))
}
