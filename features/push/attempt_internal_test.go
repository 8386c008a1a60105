package push

import (
	"encoding/hex"
	"testing"

	"github.com/google/uuid"
)

// S10: the hash of a push job's record is the same in every version of the server. Otherwise the
// first attempt of a new version would be a conflict with the last one of the old version.
func TestJobHash(t *testing.T) {
	t.Parallel()
	j := Job{ID: uuid.MustParse("0192f3a4-5b6c-7d8e-9f01-23456789abcd"), DID: "did:plc:alice", DeviceID: "phone",
		Reason: "message", attempt: 3, version: 7}
	const want = "9abdbf2cbc9ff17186e4827b81c55fb5741fc7d0fae859cf8044eab57099262d"
	if hash := j.content().Hash(); hex.EncodeToString(hash[:]) != want {
		t.Errorf("the hash is %x, want %s", hash, want)
	}
}
