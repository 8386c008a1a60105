package console

import (
	"fmt"

	"mlsd/operator"
)

// button begins an action. Its form has the method's parameters.
type button struct {
	Method, Label, About string
	Params               []param
}

// param is a parameter of the method that a button has.
type param struct{ Name, Value string }

// Act returns a button for what about names. params are names and values, in turn; a DID becomes its
// reference.
func (r *Request) Act(method, label string, about any, params ...any) button {
	b := button{Method: method, Label: label, About: fmt.Sprint(about)}
	for i := 0; i+1 < len(params); i += 2 {
		p := param{fmt.Sprint(params[i]), fmt.Sprint(params[i+1])}
		if p.Name == "did" {
			p.Value = r.Ref(p.Value)
		}
		b.Params = append(b.Params, p)
	}
	return b
}

// AllOthers stands for callers that are not counted by name.
func (*Request) AllOthers() string { return operator.AllOthers }
