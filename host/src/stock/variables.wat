;; Gives a component its variables on hosts that have none: each is undefined, so every setting has its default.
;; The interface is that of wit/spin-variables.wit, and memory is laid out by the canonical ABI.
(component
  (core module $module
    (memory (export "memory") 1)
    (global $free (mut i32) (i32.const 64))
    ;; Nothing is given back: an instance asks for a few names.
    (func (export "realloc") (param $old i32) (param $was i32) (param $align i32) (param $size i32) (result i32)
      (local $at i32)
      (local.set $at (i32.and (i32.add (global.get $free) (i32.const 7)) (i32.const -8)))
      (global.set $free (i32.add (local.get $at) (local.get $size)))
      (if (i32.gt_u (global.get $free) (i32.const 65536)) (then (unreachable)))
      (local.get $at))
    ;; error(undefined(name)): the case of the result, of the error, and the text.
    (func (export "get") (param $name i32) (param $length i32) (result i32)
      (i32.store8 (i32.const 16) (i32.const 1))
      (i32.store8 (i32.const 20) (i32.const 1))
      (i32.store (i32.const 24) (local.get $name))
      (i32.store (i32.const 28) (local.get $length))
      (i32.const 16)))
  (core instance $core (instantiate $module))
  (type $error (variant
    (case "invalid-name" string) (case "undefined" string) (case "provider" string) (case "other" string)))
  (func $get async (param "name" string) (result (result string (error $error)))
    (canon lift
      (core func $core "get")
      (memory (core memory $core "memory"))
      (realloc (core func $core "realloc"))))
  ;; Only a component can export a function together with a name for its types.
  (component $interface
    (type $cases (variant
      (case "invalid-name" string) (case "undefined" string) (case "provider" string) (case "other" string)))
    (import "its-error" (type $its-error (eq $cases)))
    (import "its-get" (func $its-get async (param "name" string) (result (result string (error $its-error)))))
    (export $error "error" (type $its-error))
    (export "get" (func $its-get) (func async (param "name" string) (result (result string (error $error))))))
  (instance $variables (instantiate $interface
    (with "its-error" (type $error))
    (with "its-get" (func $get))))
  (export "spin:variables/variables@3.0.0" (instance $variables)))
