package traffic

import (
	"fmt"

	"github.com/anishathalye/porcupine"

	"mlsd/clientsim/history"
)

// This file has the models that journals are judged by. A state is a comparable value. Each model
// describes one object; a journal has many objects.

// outcome is the result of an attempt.
type outcome string

const (
	original outcome = "done"    // the answer says that the request was done now
	replayed outcome = "replay"  // the answer says that the request was done before
	refused  outcome = "refused" // nothing was done
	unknown  outcome = "unknown" // the request may be done, now or later
)

// keyResult is the output of an attempt under an idempotency key.
type keyResult struct {
	outcome outcome
	body    history.Digest // the answer's, for done and replay
}

func (r keyResult) String() string {
	if r.outcome == original || r.outcome == replayed {
		return fmt.Sprintf("%s %x", r.outcome, r.body[:4])
	}
	return string(r.outcome)
}

// keyState is the state of an idempotency key.
type keyState struct {
	done    bool
	request history.Digest // the request that was done
	known   bool           // body is set
	body    history.Digest // the answer's
}

// keyModel: one request under a key is done once, and every later answer to it is the first answer.
// From then on, a request with other content is refused. The input is the request's digest.
func keyModel() porcupine.Model {
	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{keyState{}} },
		Step: func(state, input, output any) []any {
			return stepKey(state.(keyState), input.(history.Digest), output.(keyResult))
		},
	}
	return model.ToModel()
}

func stepKey(s keyState, request history.Digest, r keyResult) []any {
	done := keyState{done: true, request: request, known: true, body: r.body}
	same := s.done && s.request == request
	switch {
	case r.outcome == unknown && !s.done:
		return []any{s, keyState{done: true, request: request}}
	case r.outcome == unknown, r.outcome == refused && !same:
		return []any{s}
	case r.outcome == original && !s.done:
		return []any{done}
	case r.outcome == replayed && same && (!s.known || s.body == r.body):
		return []any{done}
	}
	return nil
}

// markConcurrent looks for answers that are not marked as replays, but were asked for before the
// first answer came. It turns them into replays, and counts them. When a node loses the answer to a
// COMMIT, it checks whether the write is stored. If a concurrent repetition has the same answer,
// the node cannot know which of the two transactions has written it. An answer that was asked for
// later stays as it is.
func markConcurrent(ops []porcupine.Operation) (unmarked int) {
	first := -1
	for i, op := range ops {
		if r := op.Output.(keyResult); (r.outcome == original || r.outcome == replayed) &&
			(first < 0 || op.Return < ops[first].Return) {
			first = i
		}
	}
	seen := false
	for i, op := range ops {
		r := op.Output.(keyResult)
		if r.outcome != original {
			continue
		}
		if seen && op.Call < ops[first].Return && op.Input == ops[first].Input {
			r.outcome = replayed
			ops[i].Output = r
			unmarked++
		}
		seen = true
	}
	return unmarked
}

// epochInput commits from an epoch, or reads the epoch if from is readEpoch.
type epochInput struct{ from int64 }

const readEpoch = -1

// epochOutput is the epoch after the operation. committed is set if the commit was accepted.
type epochOutput struct {
	committed bool
	epoch     int64
}

// epochModel: a commit is accepted if it was made in the present epoch, and moves the epoch by one.
func epochModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return int64(0) },
		Step: func(state, input, output any) (bool, any) {
			epoch, in, out := state.(int64), input.(epochInput), output.(epochOutput)
			if out.committed {
				return in.from == epoch && out.epoch == epoch+1, epoch + 1
			}
			return out.epoch == epoch && in.from != epoch, epoch
		},
	}
}

// welcomeDo is an operation on the Welcome of a device in a convo.
type welcomeDo string

const (
	deliver welcomeDo = "deliver"
	cancel  welcomeDo = "cancel" // the device's owner leaves the convo
	fetch   welcomeDo = "fetch"
	confirm welcomeDo = "confirm"
)

type welcomeInput struct {
	do   welcomeDo
	body history.Digest // for deliver
}

func (i welcomeInput) String() string { return fmt.Sprintf("%s %x", i.do, i.body[:4]) }

// welcomeState is the state of the device's newest Welcome, and the output of fetch and confirm.
type welcomeState struct {
	state welcomeIs
	body  history.Digest // for delivered and fetched
}

func (s welcomeState) String() string { return fmt.Sprintf("%s %x", s.state, s.body[:4]) }

type welcomeIs string

const (
	none      welcomeIs = "none" // there is no Welcome, or the caller is no member
	delivered welcomeIs = "delivered"
	fetched   welcomeIs = "fetched"
	consumed  welcomeIs = "consumed"
	maybe     welcomeIs = "unknown" // the outcome is unknown; the server may do the operation at any later time
)

// welcomeObject is the state of the Welcomes of a device in a convo. All these Welcomes have the
// same KeyPackageRef.
type welcomeObject struct {
	newest  welcomeState
	earlier bool // an earlier Welcome was fetched
}

// welcomeModel: a Welcome can be fetched, always with the same bytes, until it is confirmed. No
// Welcome can be confirmed before a fetch. If only an earlier Welcome was fetched, a confirmation
// is for that Welcome, and changes nothing.
func welcomeModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return welcomeObject{newest: welcomeState{state: none}} },
		Step: func(state, input, output any) (bool, any) {
			s, in := state.(welcomeObject), input.(welcomeInput)
			fetchedOne := s.earlier || s.newest.state == fetched || s.newest.state == consumed
			switch in.do {
			case deliver:
				return true, welcomeObject{welcomeState{delivered, in.body}, fetchedOne}
			case cancel:
				return true, welcomeObject{welcomeState{state: none}, fetchedOne}
			}
			got, after := stepWelcome(s, in.do)
			out := output.(welcomeState)
			return out == got || out.state == maybe, after
		},
	}
}

// stepWelcome returns the answer to fetch or confirm, and the state after it.
func stepWelcome(s welcomeObject, do welcomeDo) (got welcomeState, after welcomeObject) {
	there := s.newest.state == delivered || s.newest.state == fetched
	switch {
	case do == fetch && there:
		s.newest.state = fetched
		return s.newest, s
	case do == fetch:
		return s.newest, s
	case s.newest.state == fetched, s.newest.state == consumed:
		s.newest = welcomeState{state: consumed}
		return s.newest, s
	case s.newest.state == delivered && s.earlier:
		return welcomeState{state: consumed}, s
	}
	return welcomeState{state: none}, s
}

// packageDo is an operation on a one-time KeyPackage. The output is the claim's key.
type packageDo string

const (
	publish packageDo = "publish"
	claim   packageDo = "claim"
)

// packageModel: a one-time KeyPackage is claimed once, after it was published.
func packageModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return "" },
		Step: func(state, input, _ any) (bool, any) {
			if input.(packageDo) == publish {
				return state.(string) == "", string(publish)
			}
			return state.(string) == string(publish), string(claim)
		},
	}
}

// registerInput writes a value, or reads if write is "".
type registerInput struct{ write string }

// registerModel: a read returns what was written last.
func registerModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return "" },
		Step: func(state, input, output any) (bool, any) {
			if in := input.(registerInput); in.write != "" {
				return true, in.write
			}
			return output.(string) == state.(string) || state.(string) == "", output.(string)
		},
	}
}
