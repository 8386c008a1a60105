package traffic

import (
	"strings"
	"testing"

	"github.com/anishathalye/porcupine"

	"mlsd/clientsim/history"
)

// op makes an operation of a test. Times are in any unit.
func op(call, end int64, input, output any) porcupine.Operation {
	return porcupine.Operation{Input: input, Call: call, Output: output, Return: end}
}

var (
	one, two = history.DigestOf([]byte("one")), history.DigestOf([]byte("two"))
	doneOne  = keyResult{original, one}
)

// Each case is a history of one object, and whether a correct server can have it.
func TestModels(t *testing.T) {
	t.Parallel()
	request, other := history.DigestOf([]byte("request")), history.DigestOf([]byte("other"))
	put, get := welcomeInput{deliver, one}, welcomeInput{do: fetch}
	tell, gone := welcomeInput{do: confirm}, welcomeInput{do: cancel}
	tests := map[string]struct {
		model   porcupine.Model
		history []porcupine.Operation
		want    bool
	}{
		"done and replayed": {keyModel(),
			[]porcupine.Operation{op(0, 1, request, doneOne), op(2, 3, request, keyResult{replayed, one})}, true},
		"done twice": {keyModel(), []porcupine.Operation{op(0, 1, request, doneOne), op(2, 3, request, doneOne)},
			false},
		"another answer": {keyModel(),
			[]porcupine.Operation{op(0, 1, request, doneOne), op(2, 3, request, keyResult{replayed, two})}, false},
		"replayed, never done": {keyModel(), []porcupine.Operation{op(2, 3, request, keyResult{replayed, one})}, false},
		"lost, then replayed": {keyModel(), []porcupine.Operation{
			op(0, never, request, keyResult{outcome: unknown}), op(2, 3, request, keyResult{replayed, one}),
		}, true},
		"replayed before the first attempt": {keyModel(), []porcupine.Operation{
			op(2, never, request, keyResult{outcome: unknown}), op(0, 1, request, keyResult{replayed, one}),
		}, false},
		"refused, then done": {keyModel(),
			[]porcupine.Operation{op(0, 1, request, keyResult{outcome: refused}), op(2, 3, request, doneOne)}, true},
		"done, then refused": {keyModel(),
			[]porcupine.Operation{op(0, 1, request, doneOne), op(2, 3, request, keyResult{outcome: refused})}, false},
		"another request refused": {keyModel(), []porcupine.Operation{
			op(0, 1, request, doneOne), op(2, 3, other, keyResult{outcome: refused}),
		}, true},
		"another request done": {keyModel(),
			[]porcupine.Operation{op(0, 1, request, doneOne), op(2, 3, other, keyResult{original, two})}, false},
		"another request replayed": {keyModel(),
			[]porcupine.Operation{op(0, 1, request, doneOne), op(2, 3, other, keyResult{replayed, one})}, false},

		"two epochs": {epochModel(), []porcupine.Operation{
			op(0, 1, epochInput{0}, epochOutput{true, 1}), op(0, 2, epochInput{0}, epochOutput{false, 1}),
			op(3, 4, epochInput{1}, epochOutput{true, 2}), op(5, 6, epochInput{readEpoch}, epochOutput{false, 2}),
		}, true},
		"two commits in an epoch": {epochModel(), []porcupine.Operation{
			op(0, 2, epochInput{0}, epochOutput{true, 1}), op(0, 2, epochInput{0}, epochOutput{true, 1}),
		}, false},
		"an old epoch read": {epochModel(), []porcupine.Operation{
			op(0, 1, epochInput{0}, epochOutput{true, 1}), op(2, 3, epochInput{readEpoch}, epochOutput{false, 0}),
		}, false},
		"refused without reason": {epochModel(), []porcupine.Operation{op(0, 1, epochInput{0}, epochOutput{false, 0})},
			false},

		"fetched twice and confirmed": {welcomeModel(), []porcupine.Operation{
			op(0, 1, put, nil), op(2, 3, get, welcomeState{fetched, one}), op(4, 5, get, welcomeState{fetched, one}),
			op(6, 7, tell, welcomeState{state: consumed}), op(8, 9, get, welcomeState{state: consumed}),
		}, true},
		"consumed at fetch": {welcomeModel(), []porcupine.Operation{
			op(0, 1, put, nil), op(2, 3, get, welcomeState{fetched, one}), op(4, 5, get, welcomeState{state: consumed}),
		}, false},
		"consumed between two tries of a server": {welcomeModel(), []porcupine.Operation{
			op(0, 1, put, nil), op(2, 7, get, welcomeState{state: consumed}), op(2, 7, get, welcomeState{state: maybe}),
			op(4, 5, tell, welcomeState{state: consumed}),
		}, true},
		"consumed by a lost confirmation": {welcomeModel(), []porcupine.Operation{
			op(0, 1, put, nil), op(2, 3, get, welcomeState{fetched, one}), op(4, never, tell, welcomeState{state: maybe}),
			op(6, 7, get, welcomeState{state: consumed}),
		}, true},
		"an earlier one confirmed": {welcomeModel(), []porcupine.Operation{
			op(0, 1, put, nil), op(2, 3, get, welcomeState{fetched, one}), op(4, 5, gone, nil), op(6, 7, put, nil),
			op(8, 9, tell, welcomeState{state: consumed}), op(10, 11, get, welcomeState{fetched, one}),
		}, true},
		"confirmed, and there was none fetched": {welcomeModel(),
			[]porcupine.Operation{op(0, 1, put, nil), op(2, 3, tell, welcomeState{state: consumed})}, false},
		"other bytes": {welcomeModel(),
			[]porcupine.Operation{op(0, 1, put, nil), op(2, 3, get, welcomeState{fetched, two})}, false},
		"confirmed before it was there": {welcomeModel(),
			[]porcupine.Operation{op(0, 1, tell, welcomeState{state: consumed})}, false},
		"there after its owner has left": {welcomeModel(),
			[]porcupine.Operation{op(0, 1, put, nil), op(2, 3, gone, nil), op(4, 5, get, welcomeState{fetched, one})}, false},

		"claimed once": {packageModel(), []porcupine.Operation{op(0, 1, publish, nil), op(0, 2, claim, "a")},
			true},
		"claimed twice": {packageModel(),
			[]porcupine.Operation{op(0, 1, publish, nil), op(2, 3, claim, "a"), op(2, 4, claim, "b")}, false},
		"claimed before publishing": {packageModel(), []porcupine.Operation{op(2, 3, publish, nil), op(0, 1, claim, "a")},
			false},

		"the last value": {registerModel(), []porcupine.Operation{
			op(0, 1, registerInput{}, "default"), op(2, 3, registerInput{"a"}, ""), op(4, 5, registerInput{}, "a"),
		}, true},
		"an old value": {registerModel(), []porcupine.Operation{
			op(0, 1, registerInput{"a"}, ""), op(2, 3, registerInput{"b"}, ""), op(4, 5, registerInput{}, "a"),
		}, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := porcupine.CheckOperations(tt.model, tt.history); got != tt.want {
				t.Errorf("an order is possible: %t, want %t", got, tt.want)
			}
		})
	}
}

// An answer without the mark of a replay passes only if it was asked for before the first answer
// came, and only for the same request.
func TestMarkConcurrent(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		second porcupine.Operation
		want   int
	}{
		"at once":                     {op(1, 9, one, doneOne), 1},
		"later":                       {op(3, 9, one, doneOne), 0},
		"at once, of another request": {op(1, 9, two, doneOne), 0},
	} {
		ops := []porcupine.Operation{op(0, 2, one, doneOne), tt.second}
		if got := markConcurrent(ops); got != tt.want {
			t.Errorf("%s: %d marked, want %d", name, got, tt.want)
		}
		if got := porcupine.CheckOperations(keyModel(), ops); got != (tt.want == 1) {
			t.Errorf("%s: an order is possible: %t", name, got)
		}
	}
}

func TestJournal(t *testing.T) {
	t.Parallel()
	j := newJournal("thing", registerModel())
	j.add("good", j.now(), registerInput{"a"}, "")
	j.add("good", j.now(), registerInput{}, "a")
	if found, operations, undecided := j.judge(); len(found) != 0 || operations != 2 || undecided != 0 {
		t.Errorf("a sound history: %v, %d operations, %d undecided", found, operations, undecided)
	}
	j.add("bad", j.now(), registerInput{"a"}, "")
	j.add("bad", j.now(), registerInput{}, "b")
	found, _, _ := j.judge()
	if len(found) != 1 || !strings.HasPrefix(found[0].What, "thing bad: its 2 operations have no possible order:") {
		t.Errorf("an impossible history: %v", found)
	}
}
