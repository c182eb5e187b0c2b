// Package kubernetes has the inputs of a resource as a component passes them on.
package kubernetes

import "reflect"

// UntypedArgs are the inputs of a resource by name.
type UntypedArgs map[string]any

// ElementType is what Pulumi's SDK asks of inputs.
func (UntypedArgs) ElementType() reflect.Type {
	return reflect.TypeFor[map[string]any]()
}
