// Bugs that are planted, to see that each is found.
#ifndef BATON_TESTS_SIMULATION_BUG_H_
#define BATON_TESTS_SIMULATION_BUG_H_

namespace baton::simulation {

enum class Bug {
  kNone,
  // In workers and between them.
  kCopiesNothing,      // copy-on-write that copies nothing
  kSnapshotsUnstored,  // a state is left behind a step's last token only
  kDraftsBelieved,     // what is drawn behind a draft counts, whether the draft was drawn or not
  kDraftsInState,      // a state goes on over drafts that are not drawn
  kChecksumSkipped,    // frames are believed as they come
  kPinsIgnored,        // blocks are reused while their bytes are still being sent
  kPinsLeaked,         // some blocks are never given back once they are sent
  kCommitUnheard,      // a transfer's end is lost, and its request waits for ever
  // In routers.
  kResumeLosesToken,    // a continuation's first token does not arrive
  kResumeRestarts,      // a continuation is asked for without the answer so far
  kMessageTwice,        // some messages of workers are taken twice
  kDeltaTwice,          // some deltas are sent to the client twice
  kStopStringLeaks,     // a stop string is sent to the client before the end
  kHeartbeatHasText,    // a message that says only that the request lives says more
  kChargeNotGivenBack,  // the retry budget does not hear of deaths
  kTicketLeaked,        // some calls are never let go of, and hold their places
  kHoldLeaked,          // room is held for a continuation that has ended
  kFailureAsFinish,     // an answer that failed looks finished
};

}  // namespace baton::simulation

#endif  // BATON_TESTS_SIMULATION_BUG_H_
