/* A Python module with a function that adds. */
#include <Python.h>

static PyObject *add(PyObject *self, PyObject *args)
{
	long a, b;

	(void)self;
	return PyArg_ParseTuple(args, "ll", &a, &b) ? PyLong_FromLong(a + b) : NULL;
}

static PyMethodDef methods[] = {{"add", add, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "adds", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_adds(void)
{
	return PyModule_Create(&module);
}
