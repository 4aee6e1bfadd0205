//! A server that tells each client by which address it came. In: a namespace. Out: what clients are told.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::netns::NetNs;

const PATIENCE: Duration = Duration::from_secs(2);

/// The server, until it is dropped.
#[derive(Debug)]
pub struct Witness {
    port: u16,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Witness {
    /// Listens on all addresses of a namespace, both families.
    ///
    /// # Errors
    /// When the port is taken.
    pub fn start(netns: &NetNs, port: u16) -> Result<Self> {
        let listener = netns.enter(move || Ok(TcpListener::bind(("::", port))?))?;
        listener.set_nonblocking(true)?;
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopping);
        let thread = std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                match listener.accept() {
                    // A client that is cut off is no matter of the server.
                    Ok((stream, peer)) => drop(tell(stream, peer)),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        std::thread::sleep(Duration::from_millis(2));
                    }
                    Err(_) => break,
                }
            }
        });
        Ok(Self { port, stopping, thread: Some(thread) })
    }

    /// The source that the server at `address` saw of a client; `None` when no answer came within two seconds.
    ///
    /// # Errors
    /// When the client's namespace cannot be entered.
    pub fn sees(&self, client: &NetNs, address: &str) -> Result<Option<IpAddr>> {
        let server = SocketAddr::new(address.parse().context("the server's address")?, self.port);
        client.enter(move || {
            let asked = TcpStream::connect_timeout(&server, PATIENCE).and_then(|mut stream| {
                stream.set_read_timeout(Some(PATIENCE))?;
                let mut answer = String::new();
                stream.read_to_string(&mut answer)?;
                Ok(answer)
            });
            Ok(asked.ok().and_then(|answer| answer.parse().ok()))
        })
    }
}

fn tell(mut stream: TcpStream, peer: SocketAddr) -> Result<()> {
    Ok(stream.write_all(peer.ip().to_canonical().to_string().as_bytes())?)
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
