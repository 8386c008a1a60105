package api

import (
	"net/http"

	"mlsd/api/mlsapi"
)

// Methods whose lexicons stand and whose handlers are still to come.

func notYet() error {
	return failure{http.StatusNotImplemented, methodNotImplemented, "no such method"}
}

func (h *handlers) SubmitCommit(*call, *mlsapi.SubmitCommitInput) error { return notYet() }
func (h *handlers) ProcessExternalCommit(*call, *mlsapi.ProcessExternalCommitInput) error {
	return notYet()
}
func (h *handlers) GetGroupInfo(*call, *mlsapi.GetGroupInfoParams) error { return notYet() }
