//! The thread that watches all children.

use std::{io, sync::Weak, time::Duration};

use tokio::{
    runtime::{Builder, Handle as Tokio},
    sync::{Notify, watch},
    time::timeout,
};

use super::{
    shared::{Handle, Shared},
    spawn::Spawned,
    supervise::{Plan, Supervised},
    sys,
};
use crate::core::sync::{Arc, Mutex, lock, thread};

/// How long the end of the process waits for children that are being killed.
const LAST: Duration = Duration::from_secs(1);

/// Watches children on a thread of its own until it is stopped.
#[derive(Debug)]
pub struct Runtime {
    tokio: Tokio,
    children: Mutex<Vec<Weak<Shared>>>,
    stop: Arc<Notify>,
    /// Closed while nobody is subscribed: each task is.
    tasks: Arc<watch::Sender<()>>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

impl Runtime {
    /// Starts the thread.
    ///
    /// # Errors
    /// As the system says: no descriptor or no thread is to be had.
    pub fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        let tokio = runtime.handle().clone();
        let stop = Arc::new(Notify::new());
        let tasks = Arc::new(watch::Sender::new(()));
        let (stopped, done) = (stop.clone(), tasks.clone());
        let thread = thread::Builder::new()
            .name("stallwatch-child".to_owned())
            .spawn(move || {
                sys::block_signals();
                runtime.block_on(async {
                    stopped.notified().await;
                    drop(timeout(LAST, done.closed()).await);
                });
            })?;
        Ok(Self {
            tokio,
            children: Mutex::default(),
            stop,
            tasks,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Watches a child. One that cannot be watched is not left running.
    ///
    /// # Errors
    /// As the system says: no descriptor is to be had.
    pub fn supervise(&self, child: Spawned, plan: Plan) -> io::Result<Handle> {
        let (pid, own) = (child.pid, child.own);
        self.take_over(child, plan).inspect_err(|_| {
            if own {
                sys::signal_group(pid, libc::SIGKILL);
                sys::reap(pid);
            }
        })
    }

    fn take_over(&self, child: Spawned, plan: Plan) -> io::Result<Handle> {
        let shared = Arc::new(Shared::new()?);
        let task = {
            let _inside = self.tokio.enter();
            Supervised::new(child, plan, shared.clone())?
        };
        let subscribed = self.tasks.subscribe();
        {
            let mut children = lock(&self.children);
            children.retain(|child| child.strong_count() > 0);
            children.push(Arc::downgrade(&shared));
        }
        drop(self.tokio.spawn(async move {
            task.run().await;
            drop(subscribed);
        }));
        Ok(Handle::new(shared))
    }

    /// Kills what still runs, waits a moment for that, and ends the thread.
    pub fn stop(&self) {
        for child in lock(&self.children).iter().filter_map(Weak::upgrade) {
            child.end(true);
        }
        self.stop.notify_one();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            drop(thread.join());
        }
    }
}
