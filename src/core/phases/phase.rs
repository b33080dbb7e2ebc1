//! The ten phases. Python's `Phase` says the same; a test holds the two together.

/// The blocking stage an agent loop is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Phase {
    /// The loop is being built.
    Init = 0,
    /// Local initialisation.
    Setup = 1,
    /// The model was asked and owes an answer.
    AwaitingLlm = 2,
    /// Between two attempts; the retry policy owns the wait.
    RetryingLlm = 3,
    /// The history is being compacted.
    Compacting = 4,
    /// A human was asked.
    AwaitingApproval = 5,
    /// Tools run, each on its own clock.
    ExecutingTools = 6,
    /// A follow-up message is being put in.
    InjectingMessage = 7,
    /// The last answer of a turn that was told to stop.
    ForceStop = 8,
    /// The turn is over.
    Done = 9,
}

impl Phase {
    /// All of them; each lies at the index of its number.
    pub const ALL: [Self; 10] = [
        Self::Init,
        Self::Setup,
        Self::AwaitingLlm,
        Self::RetryingLlm,
        Self::Compacting,
        Self::AwaitingApproval,
        Self::ExecutingTools,
        Self::InjectingMessage,
        Self::ForceStop,
        Self::Done,
    ];

    /// The phase with this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Its number, which is part of the public contract.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Its name for people and logs.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Init => "init",
            Self::Setup => "setup",
            Self::AwaitingLlm => "awaiting_llm",
            Self::RetryingLlm => "retrying_llm",
            Self::Compacting => "compacting",
            Self::AwaitingApproval => "awaiting_approval",
            Self::ExecutingTools => "executing_tools",
            Self::InjectingMessage => "injecting_message",
            Self::ForceStop => "force_stop",
            Self::Done => "done",
        }
    }

    /// Whether silence in it is the model's silence.
    #[must_use]
    pub const fn idle_counted(self) -> bool {
        matches!(self, Self::AwaitingLlm | Self::ForceStop)
    }
}
