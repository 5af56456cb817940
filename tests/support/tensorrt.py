"""TensorRT's published table of ONNX operators (onnx-tensorrt, docs/operators.md of TensorRT 9.2), without the rest.

TensorRT lowers float64 to float32; here float64 is outside of the table.
"""

import onnx

FLOATS = """
    AveragePool BatchNormalization Ceil Clip ConstantOfShape Conv ConvTranspose Cos CumSum Einsum Elu Erf Exp Floor
    Gemm GlobalAveragePool InstanceNormalization LayerNormalization Log MatMul MaxPool NonMaxSuppression NonZero Pow
    QuantizeLinear Reciprocal Relu Resize RoiAlign Round Sigmoid Sin Softmax Sqrt Tanh
"""
NUMBERS = """
    Abs Add ArgMax Div Equal Greater GreaterOrEqual Less LessOrEqual Max Min Mod Mul Neg Pad Range ReduceL2
    ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare ScatterElements ScatterND Sign Sub Sum TopK
"""
ANYTHING = """
    Cast Concat Constant Expand EyeLike Flatten Gather GatherElements GatherND Identity Reshape Shape Size Slice
    Split Squeeze Tile Transpose Trilu Unsqueeze Where
"""
TRUTHS = 'And Not Or Xor'
TYPES = [
    (FLOATS, {'FLOAT', 'FLOAT16'}),
    (NUMBERS, {'FLOAT', 'FLOAT16', 'INT32', 'INT64'}),
    (ANYTHING, {'FLOAT', 'FLOAT16', 'INT32', 'INT64', 'BOOL'}),
    (TRUTHS, {'BOOL'}),
    ('DequantizeLinear', {'INT8'}),
]
TABLE = {operator: types for operators, types in TYPES for operator in operators.split()}
VALUE = {'Where': 1}  # which input the type is of, if not the first


def outside_of_table(file) -> set[str]:
    """What a file asks for that the table does not have: ``operator of TYPE``."""
    return {f'{name} of {kind}' for name, kind in _operators(file) if kind not in TABLE.get(name, ())}


def types_of(file, operator: str) -> set[str]:
    return {kind for name, kind in _operators(file) if name == operator}


def _operators(file) -> set[tuple[str, str]]:
    graph = onnx.shape_inference.infer_shapes(onnx.load(file), data_prop=True).graph
    types = {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.value_info, *graph.output)}
    types |= {weight.name: weight.data_type for weight in graph.initializer}
    names = {number: name for name, number in onnx.TensorProto.DataType.items()}
    made = ('Constant', 'ConstantOfShape')  # of nothing, or of a shape
    values = [(n.op_type, n.output[0] if n.op_type in made else n.input[VALUE.get(n.op_type, 0)]) for n in graph.node]
    return {(operator, names[types[value]]) for operator, value in values}
